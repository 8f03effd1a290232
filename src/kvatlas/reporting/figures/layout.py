"""How figures are laid out: grids of axes, legends, notes and axes of one kind.

It must not know a study or what a single figure shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvatlas.reporting import labels
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.style import PAGE_WIDTH, SOFT, MethodStyle, method_style

T = TypeVar("T")


def axes_grid(
    lines: int, columns: int, height: float, *, width: float = PAGE_WIDTH, **shared: Any
) -> tuple[Figure, Any]:
    """Make a figure of `width` x `height` inches and its [lines, columns] axes."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(lines, columns, squeeze=False, **shared)


def filled(axes: Iterable[Axes], items: Sequence[T]) -> Iterator[tuple[Axes, T]]:
    """Pair axes with what they show; axes that are left over are removed."""
    for number, chart in enumerate(axes):
        if number < len(items):
            yield chart, items[number]
        else:
            chart.remove()


def legend_height(entries: int, columns: int) -> float:
    """Return the inches that the lines of a legend below the panels take."""
    return 0.17 * math.ceil(entries / columns)


def method_handle(method: str, *, line: bool = True) -> Line2D:
    """Make the legend entry of a method."""
    look = method_style(method)
    handle = Line2D([], [], color=look.color, marker=look.marker, markerfacecolor=look.face, markersize=5)
    dashes: Any = look.linestyle if line else "none"
    handle.set_linestyle(dashes)
    handle.set_label(labels.method_label(method))
    return handle


def legend_below(figure: Figure, handles: Sequence[Any], columns: int = 4) -> None:
    """Put a legend under all panels, outside of them, so that it never covers data."""
    figure.legend(handles=list(handles), loc="outside lower center", ncols=min(columns, max(1, len(handles))))


def note_above(axes: Axes, text: str, *, lift: float = 2, **look: Any) -> Annotation:
    """Write a line of soft text above the axes, `lift` points over its upper edge."""
    style: dict[str, Any] = {"fontsize": 7, "color": SOFT} | look
    return axes.annotate(
        text,
        (0, 1),
        xytext=(0, lift),
        xycoords="axes fraction",
        textcoords="offset points",
        va="bottom",
        **style,
    )


def value_ticks(low: float, high: float) -> list[float]:
    """Choose round ticks of a log axis between two positive values, few over any range."""
    span = math.log10(high / low)
    steps: tuple[float, ...] = (1,)
    if span < 0.3:
        steps = (1, 1.1, 1.2, 1.3, 1.5, 1.75, 2, 2.5, 3, 4, 5, 6, 8)
    elif span < 1.2:
        steps = (1, 1.2, 1.5, 2, 3, 5)
    elif span < 2.5:
        steps = (1, 2, 5)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]


def log_value_axis(axes: Axes, low: float, high: float) -> None:
    """Make y a log axis over [low, high] with plain, few tick labels."""
    axes.set_yscale("log")
    axes.set_ylim(low * 0.95, high * 1.08)
    axes.yaxis.set_major_locator(FixedLocator(value_ticks(low * 0.95, high * 1.08)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def percent_axis(axes: Axes, which: str = "y") -> None:
    """Show shares in [0, 1] as percent, with room so that markers at 0 and 1 are not clipped."""
    ticks = (0, 0.25, 0.5, 0.75, 1)
    names = [f"{tick:.0%}" for tick in ticks]
    if which == "y":
        axes.set_yticks(ticks, labels=names)
        axes.set_ylim(-0.05, 1.05)
    else:
        axes.set_xticks(ticks, labels=names)
        axes.set_xlim(-0.05, 1.05)


def arm_axis(axes: Axes, rows: Sequence[Record], **look: Any) -> None:
    """Put one arm on each line of y, the first at the top."""
    axes.set_yticks(range(len(rows)), [labels.arm_label(row) for row in rows], **look)
    axes.set_ylim(len(rows) - 0.5, -0.5)


def mark(axes: Axes, x: float, y: float, look: MethodStyle, **style: Any) -> None:
    """Draw one point in the marker of a method."""
    looks: dict[str, Any] = {"color": look.color, "marker": look.marker, "markerfacecolor": look.face, "zorder": 3}
    axes.plot([x], [y], linestyle="none", **(looks | style))
