"""F3: paired differences in recall to the full cache and to SnapKV, with intervals, the margin line and
Holm marks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvatlas.analysis.statistics.multiplicity import ALPHA
from kvatlas.analysis.studies import arm_twins
from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import arm_axis, axes_grid, legend_below, note_above
from kvatlas.reporting.figures.panels import arm_names, needle, split
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.style import FAINT, GATE, INK, SOFT, method_style

TITLE = "Paired differences in recall"
STUDY = "needle"
CAPTION = (
    "Difference in recall, in percentage points, of each arm to the full cache (left) and to SnapKV at "
    "the same budget (right), paired by haystack. Bars are 95% intervals of the differences per haystack."
    " A filled marker means that the sign-flip p-value is below 0.05 after Holm's correction in the "
    "primary family; the red line marks the margin of 5 points used for non-inferiority to the full "
    "cache."
)
MARGIN = -5.0
_ROW = 0.185


def available(results: Record) -> bool:
    """Return whether there is any paired difference in recall."""
    return bool(_contrasts(results))


def alt(results: Record) -> str:
    """Describe the figure and its size."""
    rows = _contrasts(results)
    return (
        f"Forest plot of {len(rows)} paired recall differences with 95% intervals, "
        "a zero line and a line at minus 5 points. The numbers are in the contrast table."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one row of panels per model and question mode: versus the full cache, versus SnapKV."""
    arms = arm_names(results)
    panels = split(_contrasts(results))
    sides = [s for s in ("full", "snapkv") if any(_side(row, arms) == s for panel in panels for row in panel.rows)]
    orders = [sorted({str(r["arm"]) for r in p.rows}, key=lambda a: labels.arm_key(arms[a])) for p in panels]
    height = sum(_ROW * len(order) + 0.85 for order in orders) + 0.5
    ratios = [len(order) + 3 for order in orders]
    figure, grid = axes_grid(len(panels), len(sides), height, sharey="row", height_ratios=ratios)
    limits = {s: _limits([r for panel in panels for r in panel.rows if _side(r, arms) == s]) for s in sides}
    for line, (panel, order) in enumerate(zip(panels, orders, strict=True)):
        for column, side in enumerate(sides):
            rows = [row for row in panel.rows if _side(row, arms) == side]
            axes = grid[line][column]
            if not rows:
                axes.remove()
                continue
            _draw_panel(axes, rows, order, arms, side)
            axes.set_xlim(limits[side])
            axes.set_title(panel.title if column == 0 else "", pad=13)
            _note(axes, rows, side)
    legend_below(figure, _legend(), columns=3)
    return figure


def _contrasts(results: Record) -> list[Record]:
    arms = arm_names(results)
    rows = [row for row in needle(results, "contrasts") if row.get("metric") == "recall" and row["arm"] in arms]
    return [row for row in rows if labels.known(row.get("diff")) and _side(row, arms) != "other"]


def _side(row: Record, arms: Mapping[str, Record]) -> str:
    """Return which panel a contrast belongs to: versus the full cache, versus SnapKV in its place, or none."""
    versus = str(row["versus"])
    if row["arm"] == versus:
        return "other"
    if versus == "full":
        return "full"
    return "snapkv" if versus == arm_twins.of_reference(arms[row["arm"]], arms) else "other"


def _limits(rows: Sequence[Record]) -> tuple[float, float]:
    ends = [100 * bound for row in rows for bound in (row.get("ci") or [row["diff"]]) if labels.known(bound)]
    low, high = min([*ends, MARGIN, -10.0]), max([*ends, 10.0])
    room = 0.06 * (high - low)
    return low - room, high + room


def significant(row: Record) -> bool:
    """Return whether a contrast passes Holm's correction within the primary family."""
    return row.get("family") == "primary" and labels.known(row.get("p_holm")) and row["p_holm"] < ALPHA


def _draw_panel(
    axes: Axes, rows: Sequence[Record], order: Sequence[str], arms: Mapping[str, Record], side: str
) -> None:
    lines = {arm: index for index, arm in enumerate(order)}
    for index in range(0, len(order), 2):
        axes.axhspan(index - 0.5, index + 0.5, color="#F5F5F5", zorder=0, linewidth=0)
    for index in range(1, len(order)):
        if arms[order[index]]["budget"] != arms[order[index - 1]]["budget"]:
            axes.axhline(index - 0.5, color=SOFT, linewidth=0.6, zorder=1)
    axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
    if side == "full":
        axes.axvline(MARGIN, color=GATE, linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    for row in rows:
        arm = str(row["arm"])
        look, y, diff = method_style(str(arms[arm]["method"])), lines[arm], 100 * row["diff"]
        bounds = row.get("ci")
        if bounds and all(labels.known(bound) for bound in bounds):
            axes.plot([100 * bound for bound in bounds], [y, y], color=look.color, linewidth=1.3, zorder=2)
        axes.plot(
            [diff],
            [y],
            marker=look.marker,
            color=look.color,
            markersize=5,
            zorder=3,
            markerfacecolor=look.color if significant(row) else "white",
        )
    arm_axis(axes, [arms[arm] for arm in order], fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.set_xlabel(f"Difference to {'the full cache' if side == 'full' else 'SnapKV'} (points)")


def _note(axes: Axes, rows: Sequence[Record], side: str) -> None:
    clusters = labels.spread([int(row["n_clusters"]) for row in rows])
    versus = "full cache" if side == "full" else "SnapKV, same budget"
    note_above(axes, f"versus {versus}; n = {clusters} clusters")


def _legend() -> list[Line2D]:
    return [
        Line2D(
            [],
            [],
            color=SOFT,
            marker="o",
            markersize=5,
            linewidth=1.3,
            label=f"Holm p < {ALPHA:g}, 95% interval",
        ),
        Line2D(
            [],
            [],
            color=SOFT,
            marker="o",
            markersize=5,
            markerfacecolor="white",
            linewidth=1.3,
            label="not significant or not primary",
        ),
        Line2D([], [], color=GATE, linewidth=0.9, linestyle=(0, (4, 2)), label="margin of 5 points"),
    ]
