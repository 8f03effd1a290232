"""Adjusted p-values against published numbers and their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kvatlas.analysis.statistics import multiplicity


def test_holm_of_the_published_task_suite_leaves_nothing_below_5_percent() -> None:
    # Exact McNemar p of eleven arms of nine tasks against the control, from the numbers of tasks lost.
    lost = [0, 0, 0, 1, 8, 7, 6, 6, 6, 6, 5]
    p = [float(scipy_stats.binomtest(k, k).pvalue) if k else 1.0 for k in lost]
    assert min(multiplicity.holm(p)) == pytest.approx(0.086, abs=5e-4)
    assert min(multiplicity.benjamini_hochberg(p)) == pytest.approx(0.057, abs=5e-4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_adjusted_p_values_keep_the_order_and_never_shrink(p: list[float]) -> None:
    for adjusted in (multiplicity.holm(p), multiplicity.benjamini_hochberg(p)):
        assert all(a >= b - 1e-12 for a, b in zip(adjusted, p, strict=True))
        assert all(a <= 1 for a in adjusted)
        order = np.argsort(p, kind="stable")
        assert all(np.diff(np.asarray(adjusted)[order]) >= -1e-12)
    assert all(h >= b - 1e-12 for h, b in zip(multiplicity.holm(p), multiplicity.benjamini_hochberg(p), strict=True))


def test_rows_are_adjusted_with_those_they_were_tested_with() -> None:
    p = [0.01, 0.02, 0.03, 0.04, 0.05]
    groups = ["a", "b", "a", "b", "a"]
    rows = [{"p": value, "family": "primary", "group": group} for value, group in zip(p, groups, strict=True)]
    rows += [{"p": value, "family": "other", "group": "a"} for value in p]
    multiplicity.adjust(rows, lambda row: row["group"])
    for group in ("a", "b"):
        members = [row for row in rows[:5] if row["group"] == group]
        assert [row["p_holm"] for row in members] == multiplicity.holm([row["p"] for row in members])
    assert [row["p_bh"] for row in rows[5:]] == multiplicity.benjamini_hochberg(p)
    assert {row["p_bh"] for row in rows[:5]} == {row["p_holm"] for row in rows[5:]} == {None}


def test_holm_steps_down() -> None:
    assert multiplicity.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert multiplicity.holm([]) == multiplicity.benjamini_hochberg([]) == []
