"""The needle section: its grid, recall by depth, retention, and ranges."""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import labels, tables
from kvatlas.reporting.sections import needle
from kvatlas.reporting.study_rows import arms_of

MODEL, MODE = "smollm2-135m", "aware"
CONFIG = {"n_sinks": 4, "n_recent": 32, "new_tokens": 24, "seeds": 4}


def test_depth_cells_show_hits_out_of_n_and_add_up_to_the_total(results: dict[str, Any]) -> None:
    table = needle.by_depth(results, MODEL, MODE)
    assert table.columns == (
        "Method",
        "Ratio",
        "10% depth",
        "30% depth",
        "50% depth",
        "70% depth",
        "90% depth",
        "Total hits",
    )
    for row in table.rows:
        counts = [tuple(map(int, cell.split("(")[1].rstrip(")").split("/"))) for cell in row.cells[2:]]
        assert (sum(hits for hits, _ in counts[:-1]), sum(n for _, n in counts[:-1])) == counts[-1]


def test_the_grid_lists_what_was_crossed_without_the_questions_without_context(results: dict[str, Any]) -> None:
    context = needle.context(results, {}, CONFIG)
    assert context is not None
    assert [row["name"] for row in context["grid"]] == [
        f"{labels.model_label(MODEL)}, question-aware",
        f"{labels.model_label(MODEL)}, question-agnostic",
    ]
    grid = context["grid"][0]
    assert (grid["contexts"], grid["seeds"], grid["n"], grid["clusters"]) == ("512, 1024", "4", "40", "8")
    assert context["configured"] == {"n_sinks": 4, "n_recent": 32, "new_tokens": 24}
    assert not context["uneven"]


def test_retention_shows_the_share_of_needle_slots_of_each_arm(results: dict[str, Any]) -> None:
    table = needle.retention(results, MODEL, MODE)
    arms = arms_of(results, "needle", MODEL, MODE)
    assert [row.cells[2] for row in table.rows] == [labels.percent(arm["needle_retained"]) for arm in arms]
    assert [row.source for row in table.rows] == [tables.source("needle", arm) for arm in arms]


def test_ranges_span_the_unquantized_arms_of_a_budget(results: dict[str, Any]) -> None:
    recalls = [
        arm["recall"]
        for arm in arms_of(results, "needle", MODEL, MODE)
        if (arm["budget"], arm["quantizer"]) == ("4x", "none")
    ]
    (line,) = [line for line in needle.ranges(results, MODEL, MODE) if line.startswith("4x")]
    low, high = labels.percent(min(recalls)), labels.percent(max(recalls))
    assert line.startswith(f"4x ({len(recalls)} arms): recall {low} to {high}; reference PPL ")
