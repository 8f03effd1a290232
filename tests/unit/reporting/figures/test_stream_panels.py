"""Panels of the online study: which arms stand together, and which sink + recent arm they are held against."""

from __future__ import annotations

from typing import Any

from kvatlas.reporting.figures import stream_panels
from kvatlas.reporting.study_rows import rows_of

PROTECTED = {"base": {"n_sinks": 0, "n_recent": 0}, "fair": {"n_sinks": 4, "n_recent": 32}}


def row(method: str, protection: str = "base", budget: str = "256") -> dict[str, Any]:
    arm = "full" if method == "full" else f"{method}-{budget}slots{'' if protection == 'base' else '-' + protection}"
    fields = {"model": "m", "arm": arm, "method": method, "quantizer": "none", "protection": protection}
    return fields | {"budget": "none" if method == "full" else budget} | PROTECTED[protection]


def baselines(rows: list[dict[str, Any]]) -> dict[str, str | None]:
    """Map the protection of each panel to the arm id of its baseline."""
    panels = stream_panels.split(rows)
    return {panel.rows[0]["protection"]: panel.baseline and panel.baseline["arm"] for panel in panels}


def test_a_panel_s_baseline_has_the_panel_s_protection() -> None:
    rows = [row("full"), *(row(m, p) for m in ("snapkv", "sink_recent") for p in ("fair", "base"))]
    expected = {"base": "sink_recent-256slots", "fair": "sink_recent-256slots-fair"}
    assert baselines(rows) == baselines(rows[::-1]) == expected


def test_without_one_the_baseline_is_the_arm_that_the_tables_compare_with(results: dict[str, Any]) -> None:
    rows = rows_of(results, "online_lm")
    versus = {c["arm"]: c["versus"] for c in rows_of(results, "online_lm", "contrasts") if c["family"] == "primary"}
    panels = stream_panels.split(rows)
    assert {panel.rows[0]["protection"] for panel in panels} == {"base", "fair"}
    for panel in panels:
        assert panel.baseline is not None
        assert {versus[member["arm"]] for member in panel.rows} == {panel.baseline["arm"]}


def test_a_panel_has_no_baseline_of_another_budget_or_model() -> None:
    rows = [row("full"), row("snapkv"), row("sink_recent", budget="512"), row("sink_recent") | {"model": "n"}]
    assert baselines(rows) == {"base": None}
