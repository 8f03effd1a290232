"""The trials that are no answers to prompts, as tables to publish: scored streams, and measurements by layer and head.

`streams.parquet` has a row per stream and arm, with the NLL of every prediction. `measurements.parquet` has a row per number:
what attention loss and quantizer error were measured as, of each layer and head where they have them. Knows the trials;
knows no statistics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvatlas.files import atomic_path
from kvatlas.paths import MEASUREMENTS, STREAMS

STREAM_SCHEMA: pa.Schema = pa.schema(
    [
        *(
            (name, pa.string())
            for name in ("study", "model", "arm", "method", "policy", "budget", "quantizer", "protection")
        ),
        *((name, pa.string()) for name in ("id", "protocol", "text")),
        *((name, pa.int64()) for name in ("tokens", "block", "passages", "first_prediction", "first_compressed")),
        ("nlls", pa.list_(pa.float64())),
        ("hits", pa.list_(pa.bool_())),
    ]
)
"""NLLs in nats; prediction i is that of token i + 1, counted from `first_prediction`, passage after passage. A smaller cache
makes the predictions from `first_compressed` on; null where nothing was compressed before the end."""
MEASUREMENT_SCHEMA: pa.Schema = pa.schema(
    [
        *((name, pa.string()) for name in ("study", "model", "arm", "id", "granularity", "metric")),
        *((name, pa.int64()) for name in ("layer", "head")),
        ("value", pa.float64()),
    ]
)
"""`layer` and `head` are null for a number of the whole cache; `head` is a query head, or a KV head for metrics in `_kv`."""

_COORDINATES = ("context", "queries", "prompt", "chunk")

Trial = Mapping[str, Any]


def write(folder: Path, trials: Mapping[str, Iterable[Trial]], studies: Mapping[str, Sequence[str]]) -> None:
    """Write the tables into `folder`, and remove those that no study fills.

    `trials` maps a study to its trials, `studies` a table to the studies whose trials it holds.
    """
    for name, schema, rows_of in ((STREAMS, STREAM_SCHEMA, _streams), (MEASUREMENTS, MEASUREMENT_SCHEMA, measurements)):
        if name in studies:
            rows = [row for study in studies[name] for trial in trials[study] for row in rows_of(study, trial)]
            _write(folder / name, schema, rows)
        else:
            (folder / name).unlink(missing_ok=True)


def _streams(study: str, trial: Trial) -> Iterator[Mapping[str, Any]]:
    """Yield the trial if it is a scored stream; a suite has answers to prompts beside them."""
    if "nlls" in trial:
        yield {"study": study, **trial}


def measurements(study: str, trial: Trial) -> Iterator[dict[str, Any]]:
    """Yield every number of a trial, with its layer and head."""
    ids = {"study": study, **{key: trial.get(key) for key in ("model", "arm", "id", "granularity")}}
    for metric, measured in trial.items():
        if metric in _COORDINATES or isinstance(measured, str | bool) or measured is None:
            continue
        for layer, values in enumerate(measured) if isinstance(measured, list) else [(None, measured)]:
            for head, value in enumerate(values) if isinstance(values, list) else [(None, values)]:
                yield ids | {"metric": metric, "layer": layer, "head": head, "value": float(value)}


def _write(path: Path, schema: pa.Schema, rows: Sequence[Mapping[str, Any]]) -> None:
    columns = {name: [row.get(name) for row in rows] for name in schema.names}
    with atomic_path(path) as part:
        pq.write_table(pa.table(columns, schema=schema), part, compression="zstd")
