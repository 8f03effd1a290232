"""F2: recall by needle depth, one row per arm, the counts written into the cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, note_above
from kvatlas.reporting.figures.panels import Panel, arm_names, count_note, needle, split
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.style import FAINT, INK, PAGE_WIDTH, SOFT

TITLE = "Recall by needle depth"
STUDY = "needle"
CAPTION = (
    "Share of needles recalled at each depth of the haystack (0% is its start), all contexts pooled. Each"
    " cell prints hits out of n. One cell holds few trials, so its share is coarse; exact intervals are "
    "in results.json."
)
_COLORS = "YlGnBu"
_ROW = 0.185  # inches


def available(results: Record) -> bool:
    """Return whether recall by depth was aggregated."""
    return any(row.get("n") for row in needle(results, "by_depth"))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    rows = needle(results, "by_depth")
    depths = sorted({row["depth"] for row in rows})
    return (
        f"Heatmap of recall: {len({row['arm'] for row in rows})} arms by {len(depths)} needle depths "
        f"({', '.join(f'{depth:g}%' for depth in depths)}). The counts are in the depth table."
    )


def pooled(results: Record) -> list[Record]:
    """Return the by-depth rows over all contexts, or the single context's rows when only that was
    aggregated.
    """
    rows = [row for row in needle(results, "by_depth") if row.get("n")]
    overall = [row for row in rows if row["context"] == "all"]
    return overall or rows


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one heatmap per model and question mode; models side by side, modes below each other."""
    arms = arm_names(results)
    panels = split(row for row in pooled(results) if row["arm"] in arms)
    models = sorted({panel.model for panel in panels})
    modes = list(dict.fromkeys(panel.mode for panel in panels))
    orders = [_order((row for p in panels if p.mode == mode for row in p.rows), arms) for mode in modes]
    height = _ROW * sum(len(order) for order in orders) + 0.85 * len(modes) + 0.6
    width = max(PAGE_WIDTH, 2.2 + 2.3 * len(models))
    ratios = [len(order) + 2 for order in orders]
    figure, grid = axes_grid(len(modes), len(models), height, width=width, sharey="row", height_ratios=ratios)
    shown: list[Axes] = []
    for row, mode in enumerate(modes):
        first = True
        for column, model in enumerate(models):
            panel = next((p for p in panels if p.mode == mode and p.model == model), None)
            axes = grid[row][column]
            if panel is None:
                axes.remove()
                continue
            _draw_panel(axes, panel, orders[row], arms, results)
            axes.tick_params(labelleft=first)
            first = False
            shown.append(axes)
    bar = figure.colorbar(
        ScalarMappable(Normalize(0, 1), _COLORS),
        ax=shown,
        location="right",
        shrink=min(1.0, 2.4 / height),
        anchor=(0.0, 1.0),
        pad=0.02,
    )
    bar.set_label("Recall")
    bar.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0%", "25%", "50%", "75%", "100%"])
    bar.outline.set_visible(False)
    return figure


def _order(rows: Iterable[Record], arms: Mapping[str, Record]) -> list[str]:
    return sorted({str(row["arm"]) for row in rows}, key=lambda arm: labels.arm_key(arms[arm]))


def _draw_panel(axes: Axes, panel: Panel, order: Sequence[str], arms: Mapping[str, Record], results: Record) -> None:
    cells = {(str(row["arm"]), row["depth"]): row for row in panel.rows}
    depths = sorted({depth for _, depth in cells})
    share = np.full((len(order), len(depths)), np.nan)
    for (arm, depth), row in cells.items():
        share[order.index(arm), depths.index(depth)] = row["hits"] / row["n"]
    axes.imshow(share, cmap=_COLORS, vmin=0, vmax=1, aspect="auto")
    for (arm, depth), row in cells.items():
        y, x = order.index(arm), depths.index(depth)
        color = "white" if _is_dark(share[y, x]) else INK
        axes.text(x, y, labels.hits(row["hits"], row["n"]), ha="center", va="center", fontsize=6.5, color=color)
    axes.set_xticks(range(len(depths)), [f"{depth:g}%" for depth in depths])
    axes.set_yticks(range(len(order)), [labels.arm_label(arms[arm]) for arm in order], fontsize=7)
    axes.set_xlabel("Needle depth")
    _separate(axes, [arms[arm] for arm in order])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(panel.title.replace(", ", "\n"), pad=13)
    rows = [r for r in needle(results, "rows") if (r["model"], r["mode"]) == (panel.model, panel.mode)]
    note_above(axes, count_note(rows))


def _is_dark(share: float) -> bool:
    red, green, blue, _ = colormaps[_COLORS](share)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5


def _separate(axes: Axes, ordered: Sequence[Record]) -> None:
    """Draw white lines between cells and a gap between budgets."""
    for y in range(1, len(ordered)):
        new_budget = ordered[y]["budget"] != ordered[y - 1]["budget"]
        axes.axhline(y - 0.5, color=SOFT if new_budget else "white", linewidth=1.2 if new_budget else 0.8)
    low, high = axes.get_xlim()
    for x in range(1, round(high - low)):
        axes.axvline(x - 0.5, color="white", linewidth=0.8)
    axes.set_facecolor(FAINT)
