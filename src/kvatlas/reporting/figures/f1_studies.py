"""F1, all studies: what every arm of every study keeps, against its bytes as a share of the bf16 cache's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from kvatlas.analysis.studies.validity import is_repeat
from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, legend_below, mark, method_handle, note_above
from kvatlas.reporting.figures.panels import frontier
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.style import FAINT, SOFT, method_style

TITLE = "All studies: quality kept against bytes of the bf16 cache"
STUDY = ""
CAPTION = (
    "Every arm of every study that answers prompts: its share of hits minus the full cache's in the same study and mode, "
    "against the resident bytes over those of the full cache in bf16 (log axis). Colour is the method, the marker's size "
    "and fill tell the study: needle (filled), passkey (small), task suite (open). The staircase joins the arms that no "
    "other arm beats in both. Studies differ in prompts and lengths, so points of different studies are not paired."
)
_STUDIES = {"needle": "recall", "passkey": "recall", "task_suite": "accuracy"}
_NAMES = {"needle": "Needle", "passkey": "Passkey", "task_suite": "Task suite"}
_SIZES = {"needle": 5.5, "passkey": 3.5, "task_suite": 5.5}


class Point(NamedTuple):
    """One arm of one study."""

    study: str
    row: Record
    share: float
    kept: float


def points(results: Record, model: str) -> list[Point]:
    """Return every arm of a model with its bytes over the bf16 cache's and its hits over the full cache's."""
    collected = []
    for study, metric in _STUDIES.items():
        rows = [row for row in rows_of(results, study, model=model) if row.get("mode") != "no_context"]
        full = {row["mode"]: row[metric] for row in rows if row["arm"] == "full"}
        for row in rows:
            bf16, resident = row.get("full_bf16_mib"), row.get("resident_bf16_mib")
            if bf16 and resident and row["mode"] in full and not is_repeat(row):
                collected.append(Point(study, row, resident / bf16, row[metric] - full[row["mode"]]))
    return collected


def neighbours(arms: Sequence[Point]) -> list[list[Point]]:
    """Group points of one method that lie so close together that their names would run into each other."""
    groups: list[list[Point]] = []
    for point in sorted(arms, key=lambda p: (labels.method_key(str(p.row["method"])), p.share, -p.kept)):
        last = groups[-1][-1] if groups else None
        near = last is not None and point.share < 1.1 * last.share and abs(point.kept - last.kept) < 0.05
        if near and last is not None and last.row["method"] == point.row["method"]:
            groups[-1].append(point)
        else:
            groups.append([point])
    return groups


def _short_name(point: Point) -> str:
    quantizer, budget = str(point.row["quantizer"]), str(point.row["budget"])
    return quantizer if quantizer != "none" else "full" if budget == "none" else budget


def _models(results: Record) -> list[str]:
    """Models with two studies or more: with one, this is the study's own figure."""
    models = {str(row["model"]) for study in _STUDIES for row in rows_of(results, study)}
    return sorted(model for model in models if len({point.study for point in points(results, model)}) > 1)


def available(results: Record) -> bool:
    """Return whether any model answered the prompts of two studies."""
    return bool(_models(results))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    count = sum(len(points(results, model)) for model in _models(results))
    return (
        f"Scatter of {count} arms over all prompt studies: hits minus the full cache's against resident bytes over the bf16 "
        "cache's, on a log axis. The numbers are in the studies' main tables."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one chart per model."""
    models = _models(results)
    shown = {model: points(results, model) for model in models}
    methods = sorted({str(p.row["method"]) for arms in shown.values() for p in arms}, key=labels.method_key)
    figure, grid = axes_grid(len(models), 1, 4.0 * len(models) + 0.06 * len(methods) + 0.5)
    for line, model in enumerate(models):
        draw_chart(grid[line][0], shown[model])
        grid[line][0].set_title(labels.model_label(model), pad=13)
    marks = [
        Line2D([], [], color=SOFT, marker="o", linestyle="none", markersize=_SIZES[study], label=name)
        for study, name in _NAMES.items()
        if any(p.study == study for arms in shown.values() for p in arms)
    ]
    for handle in marks:
        handle.set_markerfacecolor("white" if handle.get_label() == "Task suite" else SOFT)
    legend_below(figure, [*(method_handle(method, line=False) for method in methods), *marks], columns=4)
    return figure


def draw_chart(axes: Axes, arms: Sequence[Point]) -> None:
    """Draw the arms of one model, with the staircase of those that no other arm beats in both."""
    staircase = frontier([(point.share, point.kept) for point in arms], larger_is_better=True)
    axes.axhline(0, color=SOFT, linewidth=0.8)
    axes.axvline(1, color=SOFT, linewidth=0.8)
    steps = [share for share, _ in staircase]
    values = [kept for _, kept in staircase]
    axes.step([*steps, 1.4], [*values, values[-1]], where="post", color=SOFT, linewidth=2.5, alpha=0.45, zorder=1)
    edge = set(staircase)
    for point in arms:
        look = method_style(str(point.row["method"]))
        face = "white" if point.study == "task_suite" else look.face
        mark(axes, point.share, point.kept, look, markerfacecolor=face, markersize=_SIZES[point.study])
    named = [p for p in arms if (p.share, p.kept) in edge or p.row["quantizer"] != "none"]
    for group in neighbours(named):
        first = group[0]
        axes.annotate(
            ", ".join(dict.fromkeys(_short_name(point) for point in group)),
            (first.share, max(point.kept for point in group)),
            xytext=(4, 6),
            textcoords="offset points",
            fontsize=5.5,
            color=method_style(str(first.row["method"])).color,
        )
    axes.set_xscale("log", base=2)
    low, high = min(point.share for point in arms), max(point.share for point in arms)
    axes.set_xlim(low * 0.85, high * 1.25)
    axes.xaxis.set_major_locator(LogLocator(base=2))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
    axes.set_xlabel("Resident bytes over the full bf16 cache's (log axis)")
    axes.set_ylabel("Hits minus the full cache's (points)")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:+.0f}"))
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    counts = labels.spread(sorted({int(point.row["n"]) for point in arms}))
    note_above(axes, f"{len(arms)} arms; n = {counts} trials per arm")
