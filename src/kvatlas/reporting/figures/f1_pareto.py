"""F1: quality against resident bytes, one line per method over its budgets, with the non-dominated arms.

Bytes are those of the deployed cache: bf16 where it is not quantized, also when the run stored fp32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import (
    axes_grid,
    filled,
    legend_below,
    legend_height,
    log_value_axis,
    mark,
    method_handle,
    percent_axis,
)
from kvatlas.reporting.figures.panels import Panel, by_method, frontier, needle, resident_mib, split, titled
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.style import FAINT, INK, PAGE_WIDTH, SOFT, method_style

TITLE = "Quality against resident bytes"
STUDY = "needle"
CAPTION = (
    "Needle recall (top) and reference perplexity (bottom) against the resident size of the KV cache, as "
    "deployed in bf16, on a log axis. Lines join the budgets of one method; arms with the same size are "
    "spread a little sideways so that all can be seen; quantized arms carry their quantizer's name. The "
    "grey staircase joins the non-dominated arms (in size and quality together). Vertical bars are 95% "
    "intervals: Korn-Graubard for recall, a t interval over haystacks for perplexity."
)
_METRICS = (("recall", "recall_ci", "Needle recall"), ("ref_ppl", "ref_ppl_ci", "Reference PPL"))
_STEP, _WIDEST = 0.016, 0.3  # in units of ln(MiB): from arm to arm of equal size, and over all of them


def available(results: Record) -> bool:
    """Return whether any compressed arm has a size and a recall."""
    return any(row["method"] != "full" and _point(row, "recall") for row in needle(results, "rows"))


def alt(results: Record) -> str:
    """Describe the figure and its extent."""
    rows = needle(results, "rows")
    sizes = [size for row in rows if (size := resident_mib(row))]
    methods = len({row["method"] for row in rows})
    return (
        f"Scatter with lines: recall and reference perplexity of {methods} methods over resident "
        f"cache sizes from {labels.fixed(min(sizes), 2)} to {labels.fixed(max(sizes), 2)} MiB. "
        "The numbers are in the main table."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw recall and reference perplexity for each model and question mode."""
    panels = split(row for row in needle(results, "rows") if resident_mib(row))
    panels = [panel for panel in panels if any(row["method"] != "full" for row in panel.rows)]
    modes = sorted({panel.mode for panel in panels})
    width = max(PAGE_WIDTH, 3.3 * min(len(modes), 3))
    columns = min(2, len(panels))
    bands = math.ceil(len(panels) / columns)
    methods = by_method(row for panel in panels for row in panel.rows)
    height = 4.9 * bands + legend_height(len(methods) + 1, 3) + 0.2
    figure, grid = axes_grid(2 * bands, columns, height, width=width)
    for line, metric in enumerate(_METRICS):
        for axes, panel in filled(grid[line::2].ravel(), panels):
            _draw_panel(axes, panel, metric)
            if line == 0:
                titled(axes, panel)
    staircase = Line2D([], [], color=SOFT, linewidth=2.5, alpha=0.45, label="non-dominated arms")
    legend_below(figure, [*(method_handle(method) for method in methods), staircase], columns=3)
    return figure


def _point(row: Record, metric: str) -> tuple[float, float] | None:
    size, value = resident_mib(row), row.get(metric)
    return (size, float(value)) if size and isinstance(value, int | float) else None


def _spread(rows: Sequence[Record]) -> dict[str, float]:
    """Give each arm the size at which it is drawn; arms within 3% of each other in size are set side by
    side.
    """
    ordered = sorted(rows, key=lambda row: (resident_mib(row) or 0.0, labels.method_key(row["method"])))
    groups: list[list[Record]] = []
    for row in ordered:
        size = resident_mib(row) or 0.0
        if groups and size <= 1.03 * (resident_mib(groups[-1][0]) or 0.0):
            groups[-1].append(row)
        else:
            groups.append([row])
    drawn: dict[str, float] = {}
    for group in groups:
        # Quantized arms come first: their names stand to the left of the group.
        group.sort(key=lambda row: (row.get("quantizer", "none") == "none", labels.method_key(row["method"])))
        width = min(_STEP * (len(group) - 1), _WIDEST)
        for rank, row in enumerate(group):
            shift = (rank / (len(group) - 1) - 0.5) * width if len(group) > 1 else 0.0
            drawn[str(row["arm"])] = (resident_mib(row) or 0.0) * math.exp(shift)
    return drawn


def _draw_panel(axes: Axes, panel: Panel, metric: tuple[str, str, str]) -> None:
    key, _, name = metric
    rows = [row for row in panel.rows if _point(row, key)]
    drawn = _spread(rows)
    points = [point for row in rows if (point := _point(row, key))]
    _draw_frontier(axes, rows, drawn, key)
    for arms in by_method(rows).values():
        _draw_method(axes, arms, drawn, metric)
    if key == "recall":
        percent_axis(axes)
    else:
        log_value_axis(axes, min(value for _, value in points), max(value for _, value in points))
    _size_axis(axes, [size for size, _ in points])
    axes.set_ylabel(name + ("" if key == "recall" else " (log axis)"))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)


def _draw_frontier(axes: Axes, rows: Sequence[Record], drawn: Mapping[str, float], key: str) -> None:
    points = {point: drawn[row["arm"]] for row in rows if (point := _point(row, key))}
    staircase = frontier(list(points), larger_is_better=key == "recall")
    steps: list[float] = []
    for point in staircase:
        # Dominance is judged on true sizes; the line follows the markers, which are drawn side by side.
        steps.append(max([points[point], *steps[-1:]]))
    values = [value for _, value in staircase]
    right = 1.25 * max(size for size, _ in points)
    axes.step(
        [*steps, right],
        [*values, values[-1]],
        where="post",
        color=SOFT,
        linewidth=2.5,
        alpha=0.45,
        zorder=1,
    )


def _draw_method(axes: Axes, arms: Sequence[Record], drawn: Mapping[str, float], metric: tuple[str, str, str]) -> None:
    key, interval_key, _ = metric
    method = str(arms[0]["method"])
    look = method_style(method)
    plain = [row for row in arms if row.get("quantizer", "none") == "none"]
    axes.plot(
        [drawn[row["arm"]] for row in plain],
        [row[key] for row in plain],
        color=look.color,
        linestyle=look.linestyle,
        linewidth=1.0,
        alpha=0.8,
        zorder=2,
    )
    for row in arms:
        size = drawn[row["arm"]]
        bounds = row.get(interval_key)
        if bounds and all(labels.known(bound) for bound in bounds):
            axes.plot([size, size], bounds, color=look.color, linewidth=0.8, alpha=0.45, zorder=2)
        mark(axes, size, row[key], look, markeredgewidth=0.9, zorder=4 if method == "full" else 3, clip_on=False)
        if row.get("quantizer", "none") != "none":
            axes.annotate(
                row["quantizer"],
                (size, row[key]),
                xytext=(-4, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=6,
                color=look.color,
                zorder=5,
                path_effects=[withStroke(linewidth=1.5, foreground="white")],
            )


def _size_axis(axes: Axes, sizes: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(min(sizes) * 0.8, max(sizes) * 1.25)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("Resident KV cache per prompt (MiB in bf16, log axis)", color=INK)
