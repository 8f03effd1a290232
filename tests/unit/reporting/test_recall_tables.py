"""Tables of recall: the published columns in their order, one format per number, rows that can be traced."""

from __future__ import annotations

import copy
from typing import Any

from kvatlas.reporting import labels, recall_tables
from kvatlas.reporting.sections import needle
from kvatlas.reporting.study_rows import rows_of
from tests.support.table_columns import column

MODEL, MODE = "smollm2-135m", "aware"
PUBLISHED = (
    "Method",
    "Ratio",
    "Mean KV (MiB)",
    "NIAH recall (N = 40) ± SE (published formula)",
    "Ref PPL (TF) ± SE",
    "Self PPL",
    "Embed CosSim",
    "Hidden CosSim",
    "Tok/s",
)


def test_the_summary_has_the_published_columns_in_the_published_order(needle_results: dict[str, Any]) -> None:
    table = recall_tables.summary(needle_results, {"rows": []}, "needle", MODEL, MODE)
    assert table.columns[: len(PUBLISHED)] == PUBLISHED
    assert table.columns[len(PUBLISHED) :] == (
        "Recall, 95% interval",
        "Actual ratio",
        "KL",
        "Resident bytes",
        "Clusters",
        "Arm",
    )
    assert all(len(row.cells) == len(table.columns) for row in table.rows)


def test_the_summary_lists_arms_in_the_published_order(needle_results: dict[str, Any]) -> None:
    table = recall_tables.summary(needle_results, {"rows": []}, "needle", MODEL, MODE)
    names = [
        method for method, ratio in zip(column(table, "Method"), column(table, "Ratio"), strict=True) if ratio == "4x"
    ]
    assert names[:8] == [
        "Naive Drop",
        "StreamingLLM",
        "H2O",
        "SnapKV",
        "Post-RoPE AW E-Means",
        "Pre-RoPE AW E-Means",
        "Pinned AW E-Means",
        "SnapKV + PreRoPE E-Means",
    ]
    assert table.rows[0].cells[:2] == ("Full cache", "1x")
    assert column(table, "Ratio") == sorted(column(table, "Ratio"))


def test_every_summary_number_comes_from_the_row_that_its_arm_names(needle_results: dict[str, Any]) -> None:
    table = recall_tables.summary(needle_results, {"rows": []}, "needle", MODEL, MODE)
    rows = {row["arm"]: row for row in rows_of(needle_results, "needle", model=MODEL, mode=MODE)}
    assert sorted(column(table, "Arm")) == sorted(rows)
    for line in table.rows:
        row, cells = rows[line.cells[-1]], dict(zip(table.columns, line.cells, strict=True))
        assert cells["Mean KV (MiB)"] == f"{row['resident_bf16_mib']:.2f}"
        assert cells[PUBLISHED[3]] == f"{100 * row['recall']:.1f}% ± {100 * row['recall_se_published']:.1f}%"
        assert cells["Resident bytes"].replace(",", "") == f"{row['kv_mib'] * 2**20:.0f}"
        assert cells["Embed CosSim"] == f"{row['embed_cosine']:.4f}"
        assert row["cells"]


def test_decode_speed_is_the_median_over_an_arms_cells_and_missing_is_a_dash(needle_results: dict[str, Any]) -> None:
    same = {"study": "needle", "model": MODEL, "mode": MODE, "arm": "snapkv-4x"}
    rows = [{**same, "decode_tokens_per_s": speed} for speed in (10.0, 30.0, 12.0)]
    rows.append({**same, "mode": "agnostic", "decode_tokens_per_s": 99.0})
    table = recall_tables.summary(needle_results, {"rows": rows}, "needle", MODEL, MODE)
    speeds = dict(zip(column(table, "Arm"), column(table, "Tok/s"), strict=True))
    assert speeds["snapkv-4x"] == "12.0"
    assert speeds["full"] == labels.DASH


def test_contrasts_set_full_and_snapkv_beside_each_other(needle_results: dict[str, Any]) -> None:
    table = recall_tables.contrasts(needle_results, "needle", MODEL, MODE)
    contrasts = {
        (row["arm"], row["versus"]): row
        for row in rows_of(needle_results, "needle", "contrasts", model=MODEL, mode=MODE)
        if row["metric"] == "recall"
    }
    line = next(row for row in table.rows if row.cells[:2] == ("H2O", "4x"))
    assert line.cells[2] == labels.signed(100 * contrasts["h2o-4x", "full"]["diff"], 1)
    assert line.cells[5] == labels.signed(100 * contrasts["h2o-4x", "snapkv-4x"]["diff"], 1)
    assert not [row for row in table.rows if row.cells[:2] == ("Full cache", "1x")]


def test_rows_of_a_task_past_no_gate_are_muted(needle_results: dict[str, Any]) -> None:
    changed = copy.deepcopy(needle_results)
    for row in changed["studies"]["needle"]["rows"]:
        row["gate_passed"] = False
    for table in (
        recall_tables.summary(changed, {}, "needle", MODEL, MODE),
        needle.by_depth(changed, MODEL, MODE),
        recall_tables.contrasts(changed, "needle", MODEL, MODE),
    ):
        assert table.rows
        assert all(row.muted for row in table.rows)
