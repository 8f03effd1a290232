"""F7: what single-forward, prefill-then-score, reference and online perplexity say about the same methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import arm_axis, axes_grid, note_above, value_ticks
from kvatlas.reporting.study_labels import PROTOCOL_LABELS
from kvatlas.reporting.study_rows import Record, models_of, rows_of
from kvatlas.reporting.style import FAINT, SOFT, method_style

TITLE = "Which perplexity sees eviction"
STUDY = "online_lm"
CAPTION = (
    "Perplexity over the full cache's by four protocols, on one shared log axis; 1 is no loss. A single forward pass reads "
    "everything before anything is evicted, so it cannot differ. Prefill then score: the cache is compressed once and the "
    "second half of the stream is scored. Online: compressed after every block, scored from where the budget binds. "
    "Reference: teacher-forced answers of the needle study at its tightest budget. Bars are 95% intervals (paired block "
    "bootstrap; paired t over haystacks for the reference)."
)
_PROTOCOLS = PROTOCOL_LABELS | {"reference": "Reference (needle)"}

Point = tuple[float, list[float] | None, int]


def available(results: Record) -> bool:
    """Return whether compressed arms were scored by two protocols or more."""
    rows = [row for row in rows_of(results, "online_lm", "protocols") if row["method"] != "full"]
    return len({row["protocol"] for row in rows}) > 1


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    arms = {row["arm"] for row in _shown(results)}
    return (
        f"Dot charts of the perplexity ratio to the full cache for {len(arms)} arms, one chart per protocol on a shared log "
        "axis. The numbers are in the table of protocols and results.json."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one chart per protocol, one line of charts per model."""
    rows = _shown(results)
    models = models_of(rows)
    points = {model: _points(results, [row for row in rows if row["model"] == model]) for model in models}
    protocols = [
        p for p in _PROTOCOLS if any(p in by_protocol for arms in points.values() for by_protocol in arms.values())
    ]
    height = sum(1.3 + 0.24 * len(points[model]) for model in models)
    ratios = [len(points[model]) + 3 for model in models]
    figure, grid = axes_grid(len(models), len(protocols), height, sharex=True, height_ratios=ratios)
    bounds = _bounds(points)
    arms = {str(row["arm"]): row for row in rows}
    for line, model in enumerate(models):
        for column, protocol in enumerate(protocols):
            axes = grid[line][column]
            _draw_chart(
                axes, [(arms[arm], by_protocol.get(protocol)) for arm, by_protocol in points[model].items()], bounds
            )
            axes.set_title(_PROTOCOLS[protocol], fontweight="normal", pad=13)
            axes.set_xlabel("PPL over full cache")
            if column:
                axes.set_yticklabels([])
        grid[line][0].set_ylabel(labels.model_label(model))
    return figure


def _shown(results: Record) -> list[Record]:
    """The online rows of arms that another protocol scored too, in table order."""
    rows = [row for row in rows_of(results, "online_lm", "protocols") if row["method"] != "full"]
    others = {(row["model"], row["arm"]) for row in rows if row["protocol"] != "online"}
    chosen = [row for row in rows if row["protocol"] == "online" and (row["model"], row["arm"]) in others]
    return sorted(chosen, key=lambda row: (row["model"], labels.arm_key(row)))


def _points(results: Record, rows: Sequence[Record]) -> dict[str, dict[str, Point]]:
    """Arm -> protocol -> (ratio, interval, predictions)."""
    points: dict[str, dict[str, Point]] = {str(row["arm"]): {} for row in rows}
    for row in rows_of(results, "online_lm", "protocols"):
        if row["model"] == rows[0]["model"] and row["arm"] in points:
            points[str(row["arm"])][str(row["protocol"])] = (row["ratio"], row["ratio_ci"], row["n"])
    reference = _reference(results, str(rows[0]["model"]))
    for row in rows:
        if row["method"] in reference:
            points[str(row["arm"])]["reference"] = reference[str(row["method"])]
    return points


def _reference(results: Record, model: str) -> dict[str, Point]:
    """Method -> reference PPL over the full cache's in the question-aware needle study, at its tightest budget."""
    table = {
        row["arm"]: row
        for row in rows_of(results, "needle")
        if row["model"] == model and row["mode"] == "aware" and row["quantizer"] == "none" and row["method"] != "full"
    }
    points: dict[str, Point] = {}
    for row in sorted(
        (c for c in rows_of(results, "needle", "contrasts") if c["arm"] in table),
        key=lambda c: labels.budget_key(str(table[c["arm"]]["budget"])),
    ):
        if (row["model"], row["mode"], row["versus"], row["metric"]) == (model, "aware", "full", "ref_nll"):
            bounds = None if row["ci"] is None else [math.exp(bound) for bound in row["ci"]]
            points[str(table[row["arm"]]["method"])] = (math.exp(row["diff"]), bounds, int(table[row["arm"]]["n"]))
    return points


def _bounds(points: Mapping[str, Mapping[str, Mapping[str, Point]]]) -> tuple[float, float]:
    every = [point for arms in points.values() for by_protocol in arms.values() for point in by_protocol.values()]
    values = [1.0, *(p[0] for p in every), *(bound for p in every for bound in p[1] or ())]
    return min(values) / 1.05, max(values) * 1.08


def _draw_chart(axes: Axes, arms: Sequence[tuple[Record, Point | None]], bounds: tuple[float, float]) -> None:
    axes.axvline(1, color=SOFT, linewidth=0.8, zorder=1)
    for line, (row, point) in enumerate(arms):
        look = method_style(str(row["method"]))
        if point is None:
            axes.text(1, line, "  not run", fontsize=6.5, color=SOFT, va="center")
            continue
        if point[1]:
            axes.plot(point[1], [line, line], color=look.color, linewidth=1.0, zorder=2)
        axes.plot([point[0]], [line], marker=look.marker, color=look.color, markerfacecolor=look.face, zorder=3)
    arm_axis(axes, [row for row, _ in arms])
    axes.set_xscale("log")
    axes.set_xlim(*bounds)
    axes.xaxis.set_major_locator(FixedLocator(_spaced(bounds)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    counts = sorted({point[2] for _, point in arms if point is not None})
    note_above(axes, f"n = {labels.spread(counts)}")


def _spaced(bounds: tuple[float, float]) -> list[float]:
    """Round ticks that are at least a quarter of the axis apart, 1 among them."""
    gap = math.log(bounds[1] / bounds[0]) / 4
    chosen = [1.0]
    for tick in value_ticks(*bounds):
        if math.log(tick / chosen[-1]) >= gap:
            chosen.append(tick)
    return chosen
