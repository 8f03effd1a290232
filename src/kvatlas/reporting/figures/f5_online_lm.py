"""F5: log-perplexity and accuracy along the stream, with the place where the budget binds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.panels import legend_below, method_handle, note_above
from kvatlas.reporting.figures.stream_panels import Row, StreamPanel, count_note, section, split
from kvatlas.reporting.style import FAINT, INK, PAGE_WIDTH, SOFT, method_style, styled

TITLE = "Online language modelling along the stream"
CAPTION = (
    "One stream, the cache brought back to budget after every block. Top: cumulative log-PPL (mean NLL of all tokens so "
    "far, nats). Middle: log-PPL of the latest window minus that of the full cache, on a linear axis around zero. Bottom: "
    "cumulative next-token accuracy minus the full cache's, in points. The vertical line is where the first slot is "
    "evicted; before it all arms are the same. Columns are budgets, and each choice of protected slots has its own block "
    "of charts; sink + recent is in all."
)
_ROWS = ("Cumulative log-PPL", "Windowed log-PPL\nover full", "Accuracy over full\n(points)")
_COLUMNS = 3


def available(results: Mapping[str, Any]) -> bool:
    """Say whether any compressed arm has a curve."""
    return bool(split(section(results, "online_lm", "rows")))


def alt(results: Mapping[str, Any]) -> str:
    """Describe the figure and its axes."""
    panels = split(section(results, "online_lm", "rows"))
    return (
        "Three lines of charts over the tokens of the stream: cumulative log-perplexity, windowed log-perplexity over the "
        f"full cache's, and accuracy over the full cache's, for {len(panels)} combinations of model, budget and protected "
        "slots. The numbers are in the online table and results.json."
    )


@styled
def draw(results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw three charts for each budget and protection, up to three columns side by side."""
    panels = split(section(results, "online_lm", "rows"))
    if not panels:
        return None
    curves = {(row["model"], row["arm"]): row for row in section(results, "online_lm", "curves")}
    bands = _bands(panels)
    shown = [row for panel in panels for row in _drawn(panel)]
    methods = sorted({str(row["method"]) for row in shown}, key=labels.method_key)
    height = 4.9 * len(bands) + 0.17 * math.ceil(len(methods) / 4) + 0.2
    figure = Figure(figsize=(PAGE_WIDTH, height), layout="constrained")
    columns = max(map(len, bands))
    grid = figure.subplots(3 * len(bands), columns, squeeze=False, sharey="row")
    for number, band in enumerate(bands):
        for column in range(columns):
            axes = [grid[3 * number + line][column] for line in range(3)]
            if column < len(band):
                _draw_panel(axes, band[column], curves, first=column == 0)
            else:
                for empty in axes:
                    empty.remove()
    legend_below(figure, [method_handle(method) for method in methods])
    return figure


def _bands(panels: Sequence[StreamPanel]) -> list[list[StreamPanel]]:
    """Put side by side what shares a model and its protection, because these losses have one scale."""
    groups: dict[tuple[str, str], list[StreamPanel]] = {}
    for panel in panels:
        groups.setdefault((panel.model, labels.protected_label(panel.rows[0])), []).append(panel)
    return [
        members[start : start + _COLUMNS] for members in groups.values() for start in range(0, len(members), _COLUMNS)
    ]


def _drawn(panel: StreamPanel) -> list[Row]:
    return [panel.full, *([panel.baseline] if panel.baseline else []), *panel.rows]


def _draw_panel(
    axes: Sequence[Axes], panel: StreamPanel, curves: Mapping[tuple[str, str], Row], *, first: bool
) -> None:
    full = curves[panel.model, "full"]
    for row in _drawn(panel):
        line = curves[panel.model, str(row["arm"])]
        look = method_style(str(row["method"]))
        series = (
            line["cumulative"],
            [a - b for a, b in zip(line["windowed"], full["windowed"], strict=True)],
            [100 * (a - b) for a, b in zip(line["accuracy"], full["accuracy"], strict=True)],
        )
        for chart, values in zip(axes, series, strict=True):
            chart.plot(
                line["tokens"],
                values,
                color=look.color,
                linestyle=look.linestyle,
                marker=look.marker,
                markerfacecolor=look.face,
                markersize=3,
                markevery=max(1, len(values) // 6),
                linewidth=1.0,
                zorder=4 if row["method"] == "full" else 3,
            )
    for chart, name in zip(axes, _ROWS, strict=True):
        chart.axvline(panel.rows[0]["post_from"] or 0, color=SOFT, linewidth=0.8, linestyle=(0, (3, 2)), zorder=1)
        chart.grid(axis="y", color=FAINT, linewidth=0.5)
        chart.locator_params(axis="x", nbins=4)
        if first:
            chart.set_ylabel(name)
    axes[2].set_xlabel("Tokens of the stream")
    axes[0].set_title("\n\n\n", pad=3)
    for text, lift, look_of in (
        (
            f"{labels.model_label(panel.model)}, {labels.budget_label(panel.budget)}",
            25,
            {"fontsize": 8.5, "fontweight": "bold", "color": INK},
        ),
        (labels.protected_label(panel.rows[0]), 14, {}),
        (count_note(panel.full), 4, {"fontsize": 6}),
    ):
        note_above(axes[0], text, lift=lift, **look_of).set_in_layout(False)
