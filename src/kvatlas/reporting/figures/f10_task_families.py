"""F10: hits by task family, one line per arm, with exact intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.panels import note_above, percent_axis
from kvatlas.reporting.figures.stream_panels import Row, section
from kvatlas.reporting.style import FAINT, PAGE_WIDTH, SOFT, method_style, styled

TITLE = "What each arm keeps, by task family"
CAPTION = (
    "Share of prompts answered, by task family, with exact (Clopper-Pearson) 95% intervals; the vertical line is the full "
    "cache. Open markers are quantized arms. A family that the full cache does not master, or that can be guessed, has its "
    "title in grey and is in no comparison."
)
FAMILIES = {
    "needle": "Needle",
    "multi_turn": "Multi-turn rule",
    "instruction": "System instruction",
    "summary": "Summary recall",
}


def available(results: Mapping[str, Any]) -> bool:
    """Say whether the suite was run."""
    return bool(section(results, "task_suite", "families"))


def alt(results: Mapping[str, Any]) -> str:
    """Describe the figure and its axes."""
    arms = {row["arm"] for row in section(results, "task_suite", "families")}
    return (
        f"Dot charts, one per task family: share of prompts answered by {len(arms)} arms with 95% intervals. The numbers are "
        "in the table of task families."
    )


@styled
def draw(results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw one chart per family, one line of charts per model."""
    rows = section(results, "task_suite", "families")
    if not rows:
        return None
    models = sorted({str(row["model"]) for row in rows})
    families = [family for family in FAMILIES if any(row["family"] == family for row in rows)]
    orders = {model: _order([row for row in rows if row["model"] == model]) for model in models}
    height = sum(1.0 + 0.19 * len(order) for order in orders.values())
    figure = Figure(figsize=(PAGE_WIDTH, height), layout="constrained")
    ratios = [len(orders[model]) + 3 for model in models]
    grid = figure.subplots(len(models), len(families), squeeze=False, sharey="row", height_ratios=ratios)
    for line, model in enumerate(models):
        for axes, family in zip(grid[line], families, strict=True):
            mine = [row for row in rows if row["model"] == model and row["family"] == family]
            _draw_chart(axes, mine, orders[model])
            passed = all(row["gate_passed"] for row in mine)
            axes.set_title(FAMILIES[family], pad=13, color="black" if passed else SOFT, fontsize=8)
            note_above(axes, f"n = {labels.spread(sorted({row['n'] for row in mine}))}")
        grid[line][0].set_ylabel(labels.model_label(model))
    return figure


def _order(rows: Sequence[Row]) -> list[Row]:
    arms = {str(row["arm"]): row for row in rows}
    return sorted(arms.values(), key=labels.arm_key)


def _draw_chart(axes: Axes, rows: Sequence[Row], order: Sequence[Row]) -> None:
    names = [str(row["arm"]) for row in order]
    for row in rows:
        y, look = names.index(row["arm"]), method_style(str(row["method"]))
        share = row["hits"] / row["n"]
        quantized = row["quantizer"] != "none"
        axes.plot(row["ci"], [y, y], color=look.color, linewidth=1.0, alpha=0.7)
        axes.plot(
            [share],
            [y],
            marker=look.marker,
            color=look.color,
            markerfacecolor="white" if quantized else look.face,
            markersize=4.5,
            linestyle="none",
            clip_on=False,
            zorder=3,
        )
        if row["arm"] == "full":
            axes.axvline(share, color=SOFT, linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(order)), [labels.arm_label(row) for row in order], fontsize=6.5)
    axes.set_ylim(len(order) - 0.5, -0.5)
    percent_axis(axes, "x")
    axes.set_xticks([0, 0.5, 1], labels=["0%", "50%", "100%"])
    axes.grid(axis="x", color=FAINT, linewidth=0.5)
    axes.tick_params(axis="y", length=0)
