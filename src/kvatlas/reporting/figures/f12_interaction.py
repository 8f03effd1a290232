"""F12: eviction and quantization together against the sum of what each loses alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, filled, legend_below, note_above, percent_axis
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.style import FAINT, INK, SOFT, method_style

TITLE = "Eviction x quantization"
STUDY = "task_suite"
CAPTION = (
    "Task accuracy without and with eviction (from left to right), in the model's own precision (solid) and quantized "
    "(dashed). The cross is where the quantized, evicted arm would be if the two losses added up; the interaction is its "
    "distance from the arm, instance by instance, with its 95% interval. Parallel lines mean additive losses. A cross under "
    "0% says that there was less accuracy left to lose than the sum of both losses: such an interaction is a floor effect."
)
_METRIC = "accuracy_interaction"
_COLUMNS = 3


def available(results: Record) -> bool:
    """Return whether any arm is evicted and quantized with both of its twins in the run."""
    return bool(_rows(results))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    return (
        f"Line charts of task accuracy for {len(_rows(results))} pairs of eviction policy and quantizer: full and evicted, "
        "each unquantized and quantized, with the additive expectation. The numbers are in the interaction table."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one chart per arm that is evicted and quantized, up to three side by side."""
    rows = _rows(results)
    arms = {(row["model"], row["arm"]): row for row in rows_of(results, "task_suite")}
    columns = min(_COLUMNS, len(rows))
    lines = math.ceil(len(rows) / columns)
    figure, grid = axes_grid(lines, columns, 2.5 * lines + 0.4, sharey=True)
    for axes, row in filled(grid.ravel(), rows):
        _draw_chart(axes, row, arms[row["model"], row["arm"]])
    for axes in grid[:, 0]:
        axes.set_ylabel("Task accuracy")
    # The axes are shared; an expectation may lie under zero.
    grid[0][0].set_ylim(min(-0.05, min(map(_expected, rows)) - 0.08), 1.05)
    handles = [
        Line2D([], [], color=INK, label="model's own precision"),
        Line2D([], [], color=INK, linestyle="--", label="quantized"),
        Line2D([], [], color=SOFT, marker="x", linestyle="none", label="if losses added up"),
    ]
    legend_below(figure, handles, columns=3)
    return figure


def _rows(results: Record) -> list[Record]:
    return [row for row in rows_of(results, "task_suite", "contrasts") if row["metric"] == _METRIC]


def _expected(row: Record) -> float:
    means = row["means"]
    return float(means["evicted"] + means["quantized"] - means["full"])


def _draw_chart(axes: Axes, row: Record, arm: Record) -> None:
    means, look = row["means"], method_style(str(arm["method"]))
    axes.plot([0, 1], [means["full"], means["evicted"]], color=look.color, marker=look.marker, clip_on=False)
    axes.plot(
        [0, 1],
        [means["quantized"], means["both"]],
        color=look.color,
        linestyle="--",
        marker=look.marker,
        markerfacecolor="white",
        clip_on=False,
        zorder=3,
    )
    axes.axhline(0, color=SOFT, linewidth=0.8, zorder=1)
    axes.plot([1], [_expected(row)], marker="x", color=SOFT, linestyle="none", markersize=7, clip_on=False, zorder=4)
    percent_axis(axes)
    axes.set_xlim(-0.25, 1.25)
    axes.set_xticks([0, 1], ["full", labels.budget_label(str(arm["budget"]))])
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    name = f"{labels.method_label(str(arm['method']))}, {arm['quantizer']}"
    axes.set_title(name, pad=22, fontsize=8)
    bounds = labels.interval(row["ci"], scale=100)
    note_above(
        axes, f"n = {row['n']} in {row['n_clusters']} instances ({labels.model_label(str(row['model']))})", lift=11
    )
    note_above(axes, f"interaction {labels.signed(100 * row['diff'], 1)} points ({bounds})")
