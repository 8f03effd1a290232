"""What the figures of the needle study share: the panels of a study, legends, and how n is told.

It must not know what a single figure shows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvatlas.reporting import labels
from kvatlas.reporting.style import SOFT, method_style

Row = Mapping[str, Any]

_MODE_ORDER = {mode: place for place, mode in enumerate(labels.MODE_LABELS)}


class Panel(NamedTuple):
    """The rows of one model and question mode."""

    model: str
    mode: str
    rows: list[Row]

    @property
    def title(self) -> str:
        """Name of the panel."""
        return f"{labels.model_label(self.model)}, {labels.mode_label(self.mode)}"


def needle(results: Mapping[str, Any], section: str) -> list[Row]:
    """Return the rows of one section of the needle study, empty when it was not run.

    Questions without their context and repeats of the full cache are left out: they are no arms to compare.
    """
    study = results.get("studies", {}).get("needle") or {}
    repeats = {
        (row["model"], row["mode"], row["arm"])
        for row in study.get("rows") or []
        if row["method"] == "full" and row.get("quantizer", "none") == "none" and row["arm"] != "full"
    }
    rows = study.get(section) or []
    return [r for r in rows if r.get("mode") != "no_context" and (r["model"], r["mode"], r.get("arm")) not in repeats]


def split(rows: Iterable[Row]) -> list[Panel]:
    """Group rows into panels by model, then question mode, keeping the rows' order."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((str(row["model"]), str(row["mode"])), []).append(row)
    order = sorted(groups, key=lambda key: (key[0], _MODE_ORDER.get(key[1], len(_MODE_ORDER)), key[1]))
    return [Panel(model, mode, groups[model, mode]) for model, mode in order]


def by_method(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by method in the published order, each method's rows from the largest cache to the
    smallest.
    """
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=labels.arm_key):
        groups.setdefault(str(row["method"]), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: labels.method_key(item[0])))


def count_note(rows: Sequence[Row]) -> str:
    """Tell the sample size of a panel: trials and clusters per arm."""
    trials = labels.spread(sorted({int(row["n"]) for row in rows if labels.known(row.get("n"))}))
    clusters = labels.spread(sorted({int(row["n_clusters"]) for row in rows if labels.known(row.get("n_clusters"))}))
    return f"n = {trials} trials in {clusters} clusters per arm"


def resident_mib(row: Row) -> float | None:
    """Resident MiB per prompt of the cache as it would be deployed: bf16 where it is not quantized."""
    value = row.get("resident_bf16_mib")
    value = row.get("kv_mib") if value is None else value
    return float(value) if isinstance(value, int | float) and value > 0 else None


def arm_names(results: Mapping[str, Any]) -> dict[str, Row]:
    """Map an arm id to any row that carries its method, budget and quantizer."""
    return {str(row["arm"]): row for row in needle(results, "rows")}


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


def titled(axes: Axes, panel: Panel) -> None:
    """Write the panel's title and its sample size above the axes."""
    axes.set_title(panel.title, pad=13)
    note_above(axes, count_note(panel.rows))


def frontier(points: Sequence[tuple[float, float]], *, larger_is_better: bool) -> list[tuple[float, float]]:
    """Return the non-dominated (size, value) points by growing size: no other point is at most as large
    and better.
    """
    sign = 1.0 if larger_is_better else -1.0
    kept: list[tuple[float, float]] = []
    for size, value in sorted(set(points), key=lambda point: (point[0], -sign * point[1])):
        if not kept or sign * value > sign * kept[-1][1]:
            kept.append((size, value))
    return kept
