"""F10: hits by task family, one line per arm, with exact intervals."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import arm_axis, axes_grid, mark, note_above, percent_axis
from kvatlas.reporting.study_labels import FAMILY_LABELS
from kvatlas.reporting.study_rows import Record, models_of, rows_of
from kvatlas.reporting.style import FAINT, SOFT, method_style

TITLE = "What each arm keeps, by task family"
STUDY = "task_suite"
CAPTION = (
    "Share of prompts answered, by task family, with exact (Clopper-Pearson) 95% intervals; the vertical line is the full "
    "cache. Open markers are quantized arms. A family that the full cache does not master, or that can be guessed, has its "
    "title in grey and is in no comparison."
)


def available(results: Record) -> bool:
    """Return whether the suite was run."""
    return bool(rows_of(results, "task_suite", "families"))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    arms = {row["arm"] for row in rows_of(results, "task_suite", "families")}
    return (
        f"Dot charts, one per task family: share of prompts answered by {len(arms)} arms with 95% intervals. The numbers are "
        "in the table of task families."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one chart per family, one line of charts per model."""
    rows = rows_of(results, "task_suite", "families")
    models = models_of(rows)
    families = [family for family in FAMILY_LABELS if any(row["family"] == family for row in rows)]
    orders = {model: _order([row for row in rows if row["model"] == model]) for model in models}
    height = sum(1.0 + 0.19 * len(order) for order in orders.values())
    ratios = [len(orders[model]) + 3 for model in models]
    figure, grid = axes_grid(len(models), len(families), height, sharey="row", height_ratios=ratios)
    for line, model in enumerate(models):
        for axes, family in zip(grid[line], families, strict=True):
            members = [row for row in rows if row["model"] == model and row["family"] == family]
            _draw_chart(axes, members, orders[model])
            passed = all(row["gate_passed"] for row in members)
            axes.set_title(FAMILY_LABELS[family], pad=13, color="black" if passed else SOFT, fontsize=8)
            note_above(axes, f"n = {labels.spread(sorted({row['n'] for row in members}))}")
        grid[line][0].set_ylabel(labels.model_label(model))
    return figure


def _order(rows: Sequence[Record]) -> list[Record]:
    arms = {str(row["arm"]): row for row in rows}
    return sorted(arms.values(), key=labels.arm_key)


def _draw_chart(axes: Axes, rows: Sequence[Record], order: Sequence[Record]) -> None:
    names = [str(row["arm"]) for row in order]
    for row in rows:
        y, look = names.index(row["arm"]), method_style(str(row["method"]))
        share = row["hits"] / row["n"]
        quantized = row["quantizer"] != "none"
        axes.plot(row["ci"], [y, y], color=look.color, linewidth=1.0, alpha=0.7)
        face = "white" if quantized else look.face
        mark(axes, share, y, look, markerfacecolor=face, markersize=4.5, clip_on=False)
        if row["arm"] == "full":
            axes.axvline(share, color=SOFT, linewidth=0.8, zorder=0)
    arm_axis(axes, order, fontsize=6.5)
    percent_axis(axes, "x")
    axes.set_xticks([0, 0.5, 1], labels=["0%", "50%", "100%"])
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
