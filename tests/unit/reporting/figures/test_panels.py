"""Panels of the needle study: what they leave out, their frontier, and their sizes."""

from __future__ import annotations

import copy
from typing import Any

from kvatlas.reporting.figures import panels


def test_figures_show_neither_the_question_without_context_nor_repeats_of_the_full_cache(
    results: dict[str, Any],
) -> None:
    repeated = copy.deepcopy(results)
    row = next(r for r in repeated["studies"]["needle"]["rows"] if r["arm"] == "full" and r["mode"] == "aware")
    repeated["studies"]["needle"]["rows"].append({**row, "arm": "full-again"})
    shown = panels.needle(repeated, "rows")
    assert {r["mode"] for r in shown} == {"aware", "agnostic"}
    assert "full-again" not in {r["arm"] for r in shown}


def test_the_frontier_keeps_no_point_that_another_dominates() -> None:
    points = [(1.0, 0.2), (2.0, 0.1), (2.0, 0.5), (3.0, 0.5), (4.0, 0.9), (5.0, 0.3)]
    assert panels.frontier(points, larger_is_better=True) == [(1.0, 0.2), (2.0, 0.5), (4.0, 0.9)]
    assert panels.frontier(points, larger_is_better=False) == [(1.0, 0.2), (2.0, 0.1)]


def test_sizes_are_those_of_the_deployed_cache() -> None:
    assert panels.resident_mib({"kv_mib": 20.0, "resident_bf16_mib": 10.0}) == 10.0
    assert panels.resident_mib({"kv_mib": 5.0}) == 5.0
    assert panels.resident_mib({"kv_mib": None}) is None
