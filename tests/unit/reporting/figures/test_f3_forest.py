"""The forest plot: which contrasts are marked."""

from __future__ import annotations

from kvatlas.reporting.figures import f3_forest


def test_only_primary_contrasts_past_holm_are_marked() -> None:
    assert f3_forest.significant({"family": "primary", "p_holm": 0.01})
    assert not f3_forest.significant({"family": "primary", "p_holm": 0.06})
    assert not f3_forest.significant({"family": "other", "p_holm": 0.01})
    assert not f3_forest.significant({"family": "primary", "p_holm": None})
