"""Published numbers beside ours: which rows are compared, which say why not, and what the columns mean."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from kvatlas.analysis.published import compare
from kvatlas.analysis.published.tables import TABLES
from kvatlas.analysis.studies import needle
from kvatlas.errors import KvatlasError
from tests.support import synthetic
from tests.support.places import ROOT

DIRECTORY = ROOT / "config" / "published"
QWEN = "qwen2.5-1.5b-instruct"
ARMS = tuple(arm for arm in synthetic.ARMS if arm.quantizer == "none" and arm.method not in ("random", "sink_recent"))


def run(**keys: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    defaults: dict[str, Any] = {"models": (QWEN,), "arms": ARMS, "modes": ("aware",), "contexts": (1024, 2048, 3072)}
    trials = synthetic.recall_trials(**(defaults | keys))
    results = {"studies": {"needle": needle.describe(trials)}}
    return trials, compare.compare(DIRECTORY, results, {"needle": trials})


def one(rows: list[dict[str, Any]], **keys: Any) -> dict[str, Any]:
    (row,) = [r for r in rows if all(r[key] == value for key, value in keys.items())]
    return row


def test_every_published_number_has_a_row() -> None:
    rows = compare.compare(DIRECTORY, {"studies": {}})
    expected = 0
    for table in TABLES:
        with (DIRECTORY / table.file).open() as stream:
            expected += len(list(csv.DictReader(stream))) * len(table.columns)
    assert len(rows) == expected
    assert {row["status"] for row in rows} == {"not run"}
    assert {path.name for path in DIRECTORY.glob("*.csv")} == {table.file for table in TABLES}


def test_published_values_are_those_of_the_files() -> None:
    rows = compare.compare(DIRECTORY, {"studies": {}})
    cells = {(r["table"], r["label"], r["arm"], r["metric"]): r["published"] for r in rows}
    assert cells["geometric_summary", "SnapKV", "snapkv-4x", "recall_pct"] == 84.4
    assert cells["geometric_recall_by_depth", "Baseline", "full", "hits_d10"] == 6
    assert cells["online_lm_1k", "KeyDiff", "keydiff-1000slots", "perplexity"] == 11.166
    assert cells["passkey_16k", "SnapKV", "snapkv-1024slots", "memory_saved_pct"] == 93.75
    assert cells["task_suite", "int8 + attention_sink", "sink_recent-50pct-int8", "kv_kib"] == 988
    assert cells["task_suite", "int4 + full", "full-int4", "accuracy_pct"] == pytest.approx(800 / 9)
    assert cells["task_suite_needle_depth", "fp32 + sliding_window", "sliding_window-50pct", "d65"] == 1
    assert cells["quantizer_error", "int2", "int2", "key_relative_error"] == 1.093


def test_another_model_is_not_compared_and_says_which_was_missing() -> None:
    _, rows = run(models=("smollm2-135m",))
    reasons = {row["reason"] for row in rows if row["table"].startswith("geometric")}
    assert reasons == {f"not run (model {QWEN}, mode aware)"}
    assert {row["reason"] for row in rows if row["table"] == "online_lm_1k"} == {"not run (study online_lm)"}


def test_a_model_of_the_family_stands_beside_the_published_numbers_and_says_so() -> None:
    large, small = {"family": "q", "shape": {"layers": 2}}, {"family": "q", "shape": {"layers": 1}}
    trials = synthetic.recall_trials(
        models=("tuned", "small", "other"), arms=ARMS, modes=("aware",), contexts=(1024, 2048, 3072)
    )
    results = {"studies": {"needle": needle.describe(trials)}}
    catalog = {QWEN: large, "tuned": large, "small": small, "other": {"shape": {"layers": 2}}}
    rows = compare.compare(DIRECTORY, results, {"needle": trials}, catalog)
    compared = [row for row in rows if row["status"] == "compared"]
    assert {(row["model"], row["relation"]) for row in compared} == {("tuned", "same shape"), ("small", "same family")}
    row = one(rows, table="geometric_summary", arm="snapkv-4x", metric="recall_pct", subset="all", model="small")
    hits = [t["hit"] for t in trials if t["arm"] == "snapkv-4x" and t["model"] == "small"]
    assert row["reproduced"] == pytest.approx(100 * sum(hits) / len(hits))


def test_a_missing_context_or_depth_is_named() -> None:
    _, rows = run(contexts=(1024,))
    assert {r["reason"] for r in rows if r["table"] == "geometric_summary"} == {"not run (context 2048, 3072)"}
    _, rows = run(depths=(10, 30, 50, 70))
    assert {r["reason"] for r in rows if r["table"] == "geometric_summary"} == {"not run (depth 90)"}


def test_a_missing_arm_is_named_and_the_others_are_compared() -> None:
    _, rows = run(arms=tuple(arm for arm in ARMS if arm.name != "h2o-8x"), seeds=3)
    reasons = {(r["arm"], r["status"], r["reason"]) for r in rows if r["table"] == "geometric_summary"}
    assert ("h2o-8x", "not run", "not run (arm h2o-8x)") in reasons
    assert ("h2o-4x", "compared", "") in reasons


def test_the_first_three_seeds_are_compared_as_published_and_then_all() -> None:
    trials, rows = run(seeds=5)
    for subset, seeds in (("as published", range(3)), ("all", range(5))):
        row = one(rows, table="geometric_summary", arm="snapkv-4x", metric="recall_pct", subset=subset)
        hits = [t["hit"] for t in trials if t["arm"] == "snapkv-4x" and t["mode"] == "aware" and t["seed"] in seeds]
        assert row["n"] == len(hits) == 15 * len(seeds)
        assert row["reproduced"] == pytest.approx(100 * sum(hits) / len(hits))
        assert row["difference"] == pytest.approx(row["reproduced"] - 84.4)
        assert row["inside"] == (row["ci"][0] <= 84.4 <= row["ci"][1])
    depth = one(rows, table="geometric_recall_by_depth", arm="full", metric="hits_d10", subset="as published")
    hits = [
        t["hit"] for t in trials if t["arm"] == "full" and t["mode"] == "aware" and t["seed"] < 3 and t["depth"] == 10
    ]
    assert depth["reproduced"] == pytest.approx(sum(hits))  # nine needles, as published
    assert depth["ci"][0] <= depth["reproduced"] <= depth["ci"][1]


def test_fewer_seeds_than_published_are_compared_only_as_all() -> None:
    _, rows = run(seeds=2)
    assert {r["subset"] for r in rows if r["table"] == "geometric_summary"} == {"all"}


def test_contexts_beyond_the_published_grid_do_not_enter() -> None:
    trials, rows = run(contexts=(512, 1024, 2048, 3072), seeds=3)
    row = one(rows, table="geometric_summary", arm="full", metric="kv_mib", subset="all")
    wanted = [t for t in trials if t["arm"] == "full" and t["mode"] == "aware" and t["context"] != 512]
    assert row["n"] == len(wanted)
    mean_mib = sum(t["full_bf16_bytes"] for t in wanted) / len(wanted) / 2**20
    assert row["reproduced"] == pytest.approx(mean_mib, rel=1e-3)


def test_a_number_without_interval_is_neither_inside_nor_outside() -> None:
    _, rows = run(seeds=3)
    row = one(rows, table="geometric_summary", arm="full", metric="self_ppl", subset="all")
    assert row["ci"] is None
    assert row["inside"] is None


def test_sections_without_trials_are_compared_by_their_rows_where_the_grid_matches() -> None:
    row = {"model": "qwen2.5-3b-instruct", "arm": "snapkv-1000slots", "tokens": 8192, "ppl": 9.1, "ppl_ci": [8.9, 9.3]}
    results: dict[str, Any] = {"studies": {"online_lm": {"rows": [row]}}}
    rows = compare.compare(DIRECTORY, results)
    compared = one(rows, table="online_lm_1k", arm="snapkv-1000slots", metric="perplexity")
    assert (compared["reproduced"], compared["inside"], compared["subset"]) == (9.1, True, "all")
    absent = one(rows, table="online_lm_1k", arm="snapkv-1000slots", metric="next_token_accuracy_pct")
    assert absent["reason"] == "not run (not measured)"
    row["tokens"] = 4096
    rows = compare.compare(DIRECTORY, results)
    assert {r["reason"] for r in rows if r["table"] == "online_lm_1k"} == {"not run (tokens 8192)"}


def test_a_missing_file_or_an_unknown_method_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match=r"geometric_summary\.csv: no such file"):
        compare.compare(tmp_path, {"studies": {}})
    text = (DIRECTORY / "geometric_summary.csv").read_text().replace("SnapKV,4", "SnapKW,4")
    (tmp_path / "geometric_summary.csv").write_text(text)
    with pytest.raises(KvatlasError, match="method 'SnapKW' is unknown"):
        compare.compare(tmp_path, {"studies": {}})
