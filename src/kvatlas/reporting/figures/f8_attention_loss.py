"""F8: attention loss (ALR) by layer and head, query heads beside the KV heads that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, filled, note_above
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.style import INK

TITLE = "Attention loss by layer and head"
STUDY = "attention_loss"
CAPTION = (
    "ALR of a method's order of eviction, divided by the number of slots, mean over queries and prompts: 0 is the order "
    "that loses the least attention. Left part of each panel: query heads, with lines between the groups that share a KV "
    "head and so one order. Right part: the KV heads, with the attention averaged over their group, which is what eviction "
    "acts on. The colours have one scale in all panels, and the mean over all query heads is in each title."
)
_COLORS = "viridis"
_COLUMNS = 4


def available(results: Record) -> bool:
    """Return whether any method has a map."""
    return bool(rows_of(results, "attention_loss", "maps"))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    maps = rows_of(results, "attention_loss", "maps")
    return (
        f"{len(maps)} heatmaps of attention loss, layers from top to bottom, query heads and KV heads from left to right. "
        "The numbers are in results.json."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one heatmap per model and method."""
    maps = sorted(
        rows_of(results, "attention_loss", "maps"), key=lambda row: (row["model"], labels.method_key(row["method"]))
    )
    rows = {(row["model"], row["arm"]): row for row in rows_of(results, "attention_loss")}
    bands: list[list[Record]] = []
    for model in dict.fromkeys(str(row["model"]) for row in maps):
        of_model = [row for row in maps if row["model"] == model]
        bands += [of_model[start : start + _COLUMNS] for start in range(0, len(of_model), _COLUMNS)]
    heights = [1.0 + 0.075 * len(band[0]["alr"]) for band in bands]
    figure, grid = axes_grid(len(bands), max(map(len, bands)), sum(heights), height_ratios=heights)
    top = max(float(np.max(row["alr"])) for row in maps)
    for line, band in enumerate(bands):
        for axes, heads in filled(grid[line], band):
            _draw_map(axes, heads, rows[heads["model"], heads["arm"]], top)
        grid[line][0].set_ylabel("Layer")
    shown = [axes for line, band in zip(grid, bands, strict=True) for axes in line[: len(band)]]
    colours = figure.colorbar(shown[0].images[0], ax=shown, shrink=0.8, pad=0.01)
    colours.set_label("ALR / slots")
    return figure


def _draw_map(axes: Axes, heads: Record, row: Record, top: float) -> None:
    query, shared = np.asarray(heads["alr"]), np.asarray(heads["alr_kv"])
    n_layers, n_heads = query.shape
    n_kv = shared.shape[1]
    picture = np.concatenate([query, np.full((n_layers, 1), np.nan), shared], axis=1)
    axes.imshow(picture, cmap=colormaps[_COLORS], vmin=0, vmax=top, aspect="auto", interpolation="nearest")
    for group in range(1, n_kv):
        axes.axvline(group * n_heads / n_kv - 0.5, color="white", linewidth=1.2)
    axes.set_xticks([(n_heads - 1) / 2, n_heads + (n_kv + 1) / 2], [f"{n_heads} query", f"{n_kv} KV"])
    axes.set_yticks(range(0, n_layers, max(1, math.ceil(n_layers / 7))))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(f"{labels.method_label(str(heads['method']))}, {row['alr']:.3f}", pad=22)
    note_above(axes, labels.model_label(str(heads["model"])), lift=11, color=INK)
    note_above(axes, f"n = {row['n']} in {row['n_clusters']} clusters")
