"""The tables beside the trials: scored streams, and measurements by layer and head."""

from __future__ import annotations

import pyarrow.parquet as pq

from kvatlas.analysis import exports
from kvatlas.paths import MEASUREMENTS, STREAMS

IDS = {"model": "m", "id": "x"}
STREAM = IDS | {"arm": "full", "passages": 1, "first_prediction": 0, "nlls": [0.5, 1.5], "hits": [True, False]}
LOSS = IDS | {"arm": "random", "prompt": 0, "context": 8, "alr": [[0.1, 0.2], [0.3, 0.4]], "policy": "random"}
ERROR = IDS | {"arm": "int4", "chunk": 0, "own": True, "bits_per_value": 4.5, "key_error": [1.0, 2.0]}
FILES = {STREAMS: ["online_lm"], MEASUREMENTS: ["attention_loss", "quantizer_error"]}
TRIALS = {"online_lm": [STREAM], "attention_loss": [LOSS], "quantizer_error": [ERROR]}


def test_a_stream_keeps_every_prediction(tmp_path):
    exports.write(tmp_path, TRIALS, FILES)
    (row,) = pq.read_table(tmp_path / STREAMS).to_pylist()
    assert (row["study"], row["nlls"], row["hits"]) == ("online_lm", [0.5, 1.5], [True, False])


def test_a_passage_of_the_suite_is_a_stream_of_its_study(tmp_path):
    passage = STREAM | {"study": "task_suite", "family": "passage"}
    exports.write(
        tmp_path, {"task_suite": [passage, {"study": "task_suite", "output": "x"}]}, {STREAMS: ["task_suite"]}
    )
    assert [row["study"] for row in pq.read_table(tmp_path / STREAMS).to_pylist()] == ["task_suite"]


def test_measurements_have_a_row_per_number_with_layer_and_head(tmp_path):
    exports.write(tmp_path, TRIALS, FILES)
    rows = pq.read_table(tmp_path / MEASUREMENTS).to_pylist()
    values = {(row["arm"], row["metric"], row["layer"], row["head"]): row["value"] for row in rows}
    heads = {("random", "alr", layer, head): LOSS["alr"][layer][head] for layer in (0, 1) for head in (0, 1)}
    layers = {("int4", "key_error", layer, None): value for layer, value in enumerate(ERROR["key_error"])}
    assert values == heads | layers | {("int4", "bits_per_value", None, None): 4.5}


def test_a_table_that_the_run_no_longer_has_is_removed(tmp_path):
    exports.write(tmp_path, TRIALS, FILES)
    exports.write(tmp_path, TRIALS, {STREAMS: ["online_lm"]})
    assert [path.name for path in tmp_path.iterdir()] == [STREAMS]
