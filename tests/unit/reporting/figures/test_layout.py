"""The layout of figures: grids without unused axes, and few ticks on log axes."""

from __future__ import annotations

import pytest

from kvatlas.reporting.figures import layout


def test_axes_that_show_nothing_are_removed() -> None:
    figure, grid = layout.axes_grid(2, 2, 3.0)
    shown = [item for _, item in layout.filled(grid.ravel(), ["a", "b", "c"])]
    assert shown == ["a", "b", "c"]
    assert figure.axes == list(grid.ravel()[:3])


@pytest.mark.parametrize(("low", "high"), [(1.1, 1.3), (1.1, 9.0), (1.0, 300.0), (1.2, 90_000.0)])
def test_a_log_axis_has_few_but_at_least_two_ticks(low: float, high: float) -> None:
    ticks = layout.value_ticks(low, high)
    assert 2 <= len(ticks) <= 9
    assert all(low <= tick <= high for tick in ticks)
