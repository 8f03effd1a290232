"""F4: what share of the needle's slots an arm keeps, against how often it answers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import (
    axes_grid,
    filled,
    legend_below,
    legend_height,
    mark,
    method_handle,
    percent_axis,
)
from kvatlas.reporting.figures.panels import Panel, by_method, needle, split, titled
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.style import FAINT, SOFT, method_style

TITLE = "Needle retained against recall"
STUDY = "needle"
CAPTION = (
    "Recall of each arm against the share of the needle's slots that it keeps, mean over layers, KV heads"
    " and trials. Marker size follows the budget. Vertical bars are 95% Korn-Graubard intervals. On the "
    "diagonal an arm answers as often as it keeps a slot."
)
_SIZES = (6.0, 4.2, 3.2)


def available(results: Record) -> bool:
    """Return whether any compressed arm has a share of retained needle slots."""
    return any(row["method"] != "full" for row in _rows(results))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    arms = len({row["arm"] for row in _rows(results)})
    return (
        f"Scatter of recall against the share of needle slots kept for {arms} arms, "
        "with a diagonal. The numbers are in results.json."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one scatter per model and question mode."""
    panels = split(_rows(results))
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    methods = by_method(row for panel in panels for row in panel.rows)
    figure, grid = axes_grid(lines, columns, 3.3 * lines + legend_height(len(methods), 3) + 0.2)
    for axes, panel in filled(grid.ravel(), panels):
        _draw_panel(axes, panel)
    legend_below(figure, [method_handle(method, line=False) for method in methods], columns=3)
    return figure


def _rows(results: Record) -> list[Record]:
    rows = needle(results, "rows")
    return [row for row in rows if labels.known(row.get("needle_retained")) and labels.known(row.get("recall"))]


def _draw_panel(axes: Axes, panel: Panel) -> None:
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=1)
    budgets = sorted({str(row["budget"]) for row in panel.rows if row["method"] != "full"}, key=labels.budget_key)
    for method, arms in by_method(panel.rows).items():
        look = method_style(method)
        axes.plot(
            [row["needle_retained"] for row in arms],
            [row["recall"] for row in arms],
            color=look.color,
            linestyle=look.linestyle,
            linewidth=0.7,
            alpha=0.6,
            zorder=2,
        )
        for row in arms:
            x = row["needle_retained"]
            if row.get("recall_ci"):
                axes.plot([x, x], row["recall_ci"], color=look.color, linewidth=0.7, alpha=0.4, zorder=2)
            step = budgets.index(row["budget"]) if row["budget"] in budgets else 0
            mark(axes, x, row["recall"], look, markersize=_SIZES[min(step, len(_SIZES) - 1)], clip_on=False)
    percent_axis(axes, "x")
    percent_axis(axes, "y")
    axes.grid(color=FAINT, linewidth=0.5)
    axes.set_xlabel("Needle slots kept (mean share)")
    axes.set_ylabel("Recall")
    titled(axes, panel)
