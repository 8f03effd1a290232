"""F13: long-context tasks by arm, the score written into each cell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, note_above
from kvatlas.reporting.figures.panels import count_note
from kvatlas.reporting.sections.ruler import STUDY, mode_name
from kvatlas.reporting.study_rows import Record, arms_of, groups, rows_of
from kvatlas.reporting.style import INK, SOFT
from kvatlas.tasks.ruler import all_tasks

TITLE = "Long-context tasks by arm"
CAPTION = (
    "Mean score of each arm in each task, in percent, arms ordered by budget: lines between two rules hold caches of one "
    "size. A task whose name is grey failed its gate: the full cache does not master it, or it can be answered without "
    "the context; its scores are shown and enter no comparison."
)
_COLORS = "YlGnBu"


def available(results: Record) -> bool:
    """Return whether the long-context tasks were run."""
    return bool(rows_of(results, STUDY, "tasks"))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    rows = rows_of(results, STUDY, "tasks")
    arms, tasks = {row["arm"] for row in rows}, {row["task"] for row in rows}
    return f"Heatmaps of scores: {len(arms)} arms by {len(tasks)} tasks. The numbers are in the tables of tasks."


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one heatmap per model and question mode, one below the other."""
    panels = groups(results, STUDY)
    sizes = [len(arms_of(results, STUDY, *panel)) for panel in panels]
    height = 0.19 * sum(sizes) + 1.6 * len(panels)
    figure, grid = axes_grid(len(panels), 1, height, height_ratios=[size + 4 for size in sizes])
    for axes, (model, mode) in zip(grid[:, 0], panels, strict=True):
        _draw_panel(axes, results, model, mode)
        axes.set_title(f"{labels.model_label(model)}, {mode_name(mode)}", pad=13)
        note_above(axes, count_note(rows_of(results, STUDY, "tasks", model=model, mode=mode)) + " and task")
    return figure


def _draw_panel(axes: Axes, results: Record, model: str, mode: str) -> None:
    rows = {(row["arm"], row["task"]): row for row in rows_of(results, STUDY, "tasks", model=model, mode=mode)}
    arms = arms_of(results, STUDY, model, mode)
    tasks = [task for task in all_tasks() if any(key[1] == task for key in rows)]
    score = np.full((len(arms), len(tasks)), np.nan)
    for y, arm in enumerate(arms):
        for x, task in enumerate(tasks):
            if (row := rows.get((arm["arm"], task))) is not None:
                score[y, x] = row["score"]
    axes.imshow(score, cmap=_COLORS, vmin=0, vmax=1, aspect="auto")
    for y, x in zip(*np.nonzero(~np.isnan(score)), strict=True):
        red, green, blue, _ = colormaps[_COLORS](score[y, x])
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5
        color = "white" if dark else INK
        axes.text(x, y, f"{100 * score[y, x]:.0f}", ha="center", va="center", fontsize=6.5, color=color)
    names = [all_tasks()[task].label for task in tasks]
    axes.set_xticks(range(len(tasks)), names, rotation=30, ha="right", fontsize=7)
    for tick, task in zip(axes.get_xticklabels(), tasks, strict=True):
        passed = all(row["gate_passed"] for key, row in rows.items() if key[1] == task)
        tick.set_color(INK if passed else SOFT)
    axes.set_yticks(range(len(arms)), [labels.arm_label(arm) for arm in arms], fontsize=7)
    for y in range(1, len(arms)):
        if arms[y]["budget"] != arms[y - 1]["budget"]:
            axes.axhline(y - 0.5, color=SOFT, linewidth=1.2)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
