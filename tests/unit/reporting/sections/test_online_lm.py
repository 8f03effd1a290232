"""The section on online language modelling: its tables, and its answer about sink + recent."""

from __future__ import annotations

import copy
from typing import Any

from kvatlas.reporting import environment, render
from kvatlas.reporting.sections import online_lm


def section(results: dict[str, Any]) -> dict[str, Any]:
    context = online_lm.context(results, {}, {})
    assert context is not None
    return context


def page(results: dict[str, Any]) -> str:
    return str(render.render_section(environment.markdown(), "online_lm", section(results)))


def test_the_answer_names_what_beats_sink_and_recent_by_its_verdict(results: dict[str, Any]) -> None:
    answers = {answer["matched"]: answer for answer in section(results)["groups"][0]["answers"]}
    fair = answers["256 slots, 4 sinks + 32 recent protected"]
    assert fair["better"] == "SnapKV"
    assert "KeyDiff" in fair["worse"]
    assert "Random" in fair["not_resolved"]
    bare = answers["256 slots, nothing protected"]
    assert "High-L2" in bare["worse"]


def test_tables_say_what_is_protected_and_how_much_is_held(results: dict[str, Any]) -> None:
    table = section(results)["groups"][0]["main"]
    by_arm = {row.cells[-1]: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows}
    assert by_arm["snapkv-256slots-fair"]["Protected"] == "4 sinks + 32 recent protected"
    assert by_arm["snapkv-256slots"]["Protected"] == "nothing protected"
    assert (by_arm["snapkv-256slots"]["Slots"], by_arm["snapkv-256slots"]["Peak slots"]) == ("256", "288")
    assert by_arm["full"]["PPL after the budget binds"] == "–"


def test_the_section_explains_blocks_and_protocols_and_shows_statements(results: dict[str, Any]) -> None:
    text = page(results)
    for words in (
        "## Online: SmolLM2-135M-Instruct",
        "Block of 32 against block of 1",
        "is identical in all arms (checked on every prediction)",
        "Does any selector beat sink + recent?",
        "Single forward: PPL",
        "**Supported.**",
    ):
        assert words in text


def test_a_run_whose_arms_differ_before_the_budget_binds_says_so(results: dict[str, Any]) -> None:
    broken = copy.deepcopy(results)
    broken["studies"]["online_lm"]["checks"][0]["identical_before_binding"] = False
    assert "do not trust" not in page(results)
    assert "do not trust" in page(broken)
