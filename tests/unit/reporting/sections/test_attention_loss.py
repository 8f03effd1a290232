"""The attention-loss section: means over heads, the random order beside them, and the layers that lose most."""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import labels
from kvatlas.reporting.sections import attention_loss


def test_the_table_shows_each_method_with_its_random_order_and_its_highest_layers(results: dict[str, Any]) -> None:
    (table,) = attention_loss.main_tables(results, {})
    lines = {row.cells[-1]: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows}
    rows = {row["arm"]: row for row in results["studies"]["attention_loss"]["rows"]}
    assert list(lines) == sorted(rows, key=labels.method_key)
    for arm, line in lines.items():
        assert line["ALR, query heads"] == f"{rows[arm]['alr']:.4f}"
        assert line["Random order, expected"] == "0.3700"
        # The synthetic loss is highest in the first two layers.
        assert {layer.split(" ")[0] for layer in line["Highest layers"].split(", ")[:2]} == {"0", "1"}


def test_the_section_names_its_context_and_queries(results: dict[str, Any]) -> None:
    context = attention_loss.context(results, {}, {})
    assert context is not None
    assert (context["context"], context["queries"]) == ("512", "8")
    assert [item.verdict for _, items in context["statements"] for item in items].count("supported") > 0
