"""The section on the task suite: its tables, what it reports as resolved, and its recommendations."""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import environment, render
from kvatlas.reporting.sections import task_suite


def section(results: dict[str, Any]) -> dict[str, Any]:
    context = task_suite.context(results, {}, {})
    assert context is not None
    return context["groups"][0]


def test_the_main_table_names_key_granularity_and_both_kinds_of_bytes(results: dict[str, Any]) -> None:
    table = section(results)["main"]
    rows = {row.cells[-1]: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows}
    assert rows["full-kivi4"]["Precision"] == "kivi4 (keys per channel)"
    assert rows["full-int8"]["Precision"] == "int8 (keys per token)"
    assert rows["full-int8"]["KV payload (KiB)"] == "53"
    assert rows["full-int8"]["Of fp32 control"] == "0.27x"
    assert rows["full-int8"]["Of bf16 cache"] == "0.53x"
    assert rows["full"]["Over control (points)"] == "–"


def test_the_page_says_what_is_resolved_at_its_n(results: dict[str, Any]) -> None:
    arms = section(results)["unresolved"]
    assert "Sliding window 50%" in arms["resolved"]
    assert "Full cache, int8" in arms["non_inferior"]
    assert arms["open"] == "none"


def test_recommendations_follow_the_tests_and_name_no_arm_without_one(results: dict[str, Any]) -> None:
    rows = {row.cells[0]: row.cells for row in section(results)["recommendations"].rows}
    assert rows["anything"][2] == "Full cache, kivi4"
    assert rows["recall from anywhere in a bounded cache"][2].startswith("none of these arms")


def test_the_section_has_all_its_tables(results: dict[str, Any]) -> None:
    context = task_suite.context(results, {}, {})
    assert context is not None
    page = render.render_section(environment.markdown(), "task_suite", context)
    for words in (
        "### Needle depth sweep",
        "### Eviction x quantization",
        "### Perplexity against accuracy",
        "### Recommendations by workload",
        "**Supported.**",
    ):
        assert words in page
