"""F9: reconstruction error of keys and values by layer, for each number of bits and each granularity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, legend_below, note_above
from kvatlas.reporting.study_rows import Record, models_of, rows_of
from kvatlas.reporting.style import FAINT, INK, SOFT

TITLE = "Quantizer error by layer"
STUDY = "quantizer_error"
CAPTION = (
    "Relative error of keys (left) and values (right), sum|e| / sum|x| over all chunks, layer by layer, on a log axis. "
    "Colour is the number of bits. Solid lines scale per token, dashed lines per channel over 32 tokens, dotted lines are "
    "KIVI (keys per channel, values per token in groups of 32 channels). At 1 the error is as large as the signal."
)
_COLORS = {"fp16": "#999933", "bf16": "#6E6E6E", "fp8": "#117733", "8": "#0072B2", "4": "#D55E00", "2": "#882255"}
_DASHES = {"token": "-", "channel": "--", "keys per channel, values per token": ":"}
_MOST_TICKS = 200
_SIDES = (("key_l1", "Keys"), ("value_l1", "Values"))


def available(results: Record) -> bool:
    """Return whether any quantizer has an error by layer."""
    return bool(_lines(results))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    arms = {(row["arm"], row["granularity"]) for row in _lines(results)}
    return (
        f"Two line charts over layers, keys and values: relative error of {len(arms)} quantizers on a log axis. The pooled "
        "numbers are in the table of quantizer errors."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw keys and values side by side, one line of charts per model."""
    lines = _lines(results)
    models = models_of(lines)
    figure, grid = axes_grid(len(models), 2, 2.9 * len(models) + 0.7, sharey="row")
    for charts, model in zip(grid, models, strict=True):
        of_model = [row for row in lines if row["model"] == model]
        counts = [row["n"] for row in rows_of(results, "quantizer_error", model=model)]
        for axes, (metric, name) in zip(charts, _SIDES, strict=True):
            _draw_chart(axes, of_model, metric)
            axes.set_title(f"{labels.model_label(model)}, {name.lower()}", pad=13)
            note_above(axes, f"n = {labels.spread(sorted(set(counts)))} chunks")
        charts[0].set_ylabel("Relative error (L1, log axis)")
    legend_below(figure, [_handle(row) for row in _once(lines)], columns=5)
    return figure


def _lines(results: Record) -> list[Record]:
    """Errors above zero: a format that loses nothing has no point on a log axis."""
    rows = rows_of(results, "quantizer_error", "by_layer")
    return [row for row in rows if all(labels.known(row[key]) and row[key] > 0 for key, _ in _SIDES)]


def _once(rows: Sequence[Record]) -> list[Record]:
    first = {(row["arm"], row["granularity"]): row for row in reversed(rows)}
    return [first[key] for key in dict.fromkeys((row["arm"], row["granularity"]) for row in rows)]


def _look(row: Record) -> tuple[str, str]:
    arm = str(row["arm"])
    color = _COLORS.get(arm) or _COLORS.get(arm[-1], INK)
    return color, _DASHES.get(str(row["granularity"]), "-")


def _handle(row: Record) -> Line2D:
    color, dashes = _look(row)
    line: Any = dashes
    name = str(row["arm"]) + (", per channel" if row["granularity"] == "channel" else "")
    return Line2D([], [], color=color, linestyle=line, label=name)


def _draw_chart(axes: Axes, rows: Sequence[Record], metric: str) -> None:
    axes.axhline(1.0, color=SOFT, linewidth=0.8)
    for first in _once(rows):
        line = [r for r in rows if (r["arm"], r["granularity"]) == (first["arm"], first["granularity"])]
        color, dashes = _look(first)
        layers = [row["layer"] for row in line]
        axes.plot(layers, [row[metric] for row in line], color=color, linestyle=dashes, linewidth=1.2)
    axes.set_yscale("log")
    _powers_as_math(axes.yaxis)
    axes.set_xlabel("Layer")
    axes.grid(axis="y", color=FAINT, linewidth=0.5)


def _powers_as_math(axis: Axis) -> None:
    """Spell the numbers of a log axis as powers, the only math of a figure; names are text whatever they hold."""
    with rc_context({"text.parse_math": True}):
        # The ticks of an axis are made once, and keep how they read text.
        axis.get_major_ticks(_MOST_TICKS)
        axis.get_minor_ticks(_MOST_TICKS)
