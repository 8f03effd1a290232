"""Published against reproduced: each published number is beside ours, or counted with the reason."""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import reproduction
from tests.support.table_columns import column


def test_published_numbers_are_either_beside_ours_or_counted_with_the_reason(needle_results: dict[str, Any]) -> None:
    total = sum(int(cell) for cell in column(reproduction.not_reproduced(needle_results), "Numbers"))
    beside = sum(len(table.rows) for table in reproduction.published(needle_results).values())
    assert total + beside == len(needle_results["published"])
    compared = {
        "source": "s",
        "table": "t",
        "label": "SnapKV",
        "arm": "snapkv-4x",
        "model": "m",
        "relation": "same model",
        "metric": "recall_pct",
        "published": 84.4,
        "status": "compared",
        "reason": "",
        "subset": "all",
        "reproduced": 80.0,
        "difference": -4.4,
        "ci": [60.0, 92.0],
        "inside": True,
        "n": 45,
    }
    (table,) = reproduction.published({"published": [compared]}).values()
    (line,) = table.rows
    assert line.cells[5:] == ("84.400", "80.000", "−4.400", "60.000 to 92.000", "yes", "45")


def test_numbers_of_a_relative_stand_under_a_heading_that_says_so(needle_results: dict[str, Any]) -> None:
    row = {
        "table": "t",
        "label": "SnapKV",
        "arm": "snapkv-4x",
        "model": "m",
        "metric": "recall_pct",
        "status": "compared",
    }
    relatives = [row | {"relation": relation} for relation in ("same family", "same shape")]
    assert list(reproduction.published({"published": relatives})) == [
        "Same architecture and size, other fine-tune and weights",
        "Same architecture, other size, fine-tune and weights",
    ]
