"""F14: the score by question number, where several questions are asked of one compressed cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, legend_below, legend_height, note_above, percent_axis
from kvatlas.reporting.figures.panels import count_note
from kvatlas.reporting.sections.ruler import STUDY, mode_name
from kvatlas.reporting.study_rows import Record, arms_of, groups, rows_of
from kvatlas.reporting.style import method_style

TITLE = "Several questions to one compressed cache"
CAPTION = (
    "Mean score by the number of the question, with 95% intervals. The context is compressed before any question is read. "
    "Each question goes to the compressed cache itself, or follows the answers to those before it, turn by turn."
)
_COLUMNS = 2
_DASHES = ("-", "--", ":", "-.")  # by budget, the largest cache first
_DODGE = 0.06  # of a question, between the intervals of neighbouring arms


def available(results: Record) -> bool:
    """Return whether several questions were asked of one context."""
    return bool(rows_of(results, STUDY, "questions"))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    arms = {row["arm"] for row in rows_of(results, STUDY, "questions")}
    return f"Lines: score by question number of {len(arms)} arms. The numbers are in the tables by question number."


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one chart per model and question mode."""
    shown = {(row["model"], row["mode"]) for row in rows_of(results, STUDY, "questions")}
    panels = [panel for panel in groups(results, STUDY) if panel in shown]
    arms = {row["arm"]: row for panel in panels for row in arms_of(results, STUDY, *panel)}
    order = sorted(arms.values(), key=labels.arm_key)
    height = 2.6 * len(panels) + legend_height(len(order), _COLUMNS)
    figure, grid = axes_grid(len(panels), 1, height)
    budgets = list(dict.fromkeys(str(row["budget"]) for row in order if row["budget"] != "none"))
    handles: dict[str, Any] = {}
    for axes, (model, mode) in zip(grid[:, 0], panels, strict=True):
        rows = rows_of(results, STUDY, "questions", model=model, mode=mode)
        for number, arm in enumerate(order):
            members = [row for row in rows if row["arm"] == arm["arm"]]
            if members:
                shift = _DODGE * (number - (len(order) - 1) / 2)
                dashes = _DASHES[budgets.index(arm["budget"]) % len(_DASHES)] if arm["budget"] in budgets else "-"
                handles[arm["arm"]] = _draw_arm(axes, arm, members, shift, dashes)
        axes.set_title(f"{labels.model_label(model)}, {mode_name(mode)}", pad=13)
        note_above(axes, count_note(rows))
        percent_axis(axes)
        axes.set_xlabel("Question")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_below(figure, [handles[arm["arm"]] for arm in order if arm["arm"] in handles], _COLUMNS)
    return figure


def _draw_arm(axes: Axes, arm: Record, rows: Sequence[Record], shift: float, dashes: str) -> Any:
    look = method_style(str(arm["method"]))
    places = [row["question_number"] + shift for row in rows]
    for place, row in zip(places, rows, strict=True):
        axes.plot([place, place], row["score_ci"], color=look.color, linewidth=0.8, alpha=0.5)
    face = "white" if arm["quantizer"] != "none" else look.face
    style: dict[str, Any] = {"color": look.color, "marker": look.marker, "markerfacecolor": face, "markersize": 4}
    scores = [row["score"] for row in rows]
    (line,) = axes.plot(places, scores, linestyle=dashes, label=labels.arm_label(arm), **style)
    return line
