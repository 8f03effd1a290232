"""F5: log-perplexity and accuracy along the stream, with the place where the budget binds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import axes_grid, legend_below, legend_height, method_handle, note_above
from kvatlas.reporting.figures.stream_panels import StreamPanel, count_note, split
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.style import FAINT, INK, SOFT, method_style

TITLE = "Online language modelling along the stream"
STUDY = "online_lm"
CAPTION = (
    "One stream, the cache brought back to budget after every block. Top: cumulative log-PPL (mean NLL of all tokens so "
    "far, nats). Middle: log-PPL of the latest window minus that of the full cache, on a linear axis around zero. Bottom: "
    "cumulative next-token accuracy minus the full cache's, in points. The vertical line is where the first slot is "
    "evicted; before it all arms are the same. Columns are budgets, and each choice of protected slots has its own block "
    "of charts; sink + recent is in all."
)
_ROWS = ("Cumulative log-PPL", "Windowed log-PPL\nover full", "Accuracy over full\n(points)")
_COLUMNS = 3


def available(results: Record) -> bool:
    """Return whether any compressed arm has a curve."""
    return bool(split(rows_of(results, "online_lm")))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    panels = split(rows_of(results, "online_lm"))
    return (
        "Three lines of charts over the tokens of the stream: cumulative log-perplexity, windowed log-perplexity over the "
        f"full cache's, and accuracy over the full cache's, for {len(panels)} combinations of model, budget and protected "
        "slots. The numbers are in the online table and results.json."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw three charts for each budget and protection, up to three columns side by side."""
    panels = split(rows_of(results, "online_lm"))
    curves = {(row["model"], row["arm"]): row for row in rows_of(results, "online_lm", "curves")}
    bands = _bands(panels)
    shown = [row for panel in panels for row in _drawn(panel)]
    methods = sorted({str(row["method"]) for row in shown}, key=labels.method_key)
    height = 4.9 * len(bands) + legend_height(len(methods), 4) + 0.2
    figure, grid = axes_grid(3 * len(bands), max(map(len, bands)), height, sharey="row")
    for number, band in enumerate(bands):
        charts = grid[3 * number : 3 * number + 3]
        for column, panel in enumerate(band):
            _draw_panel(charts[:, column], panel, curves, first=column == 0)
        for unused in charts[:, len(band) :].ravel():
            unused.remove()
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


def _drawn(panel: StreamPanel) -> list[Record]:
    return [panel.full, *([panel.baseline] if panel.baseline else []), *panel.rows]


def _draw_panel(
    axes: Sequence[Axes], panel: StreamPanel, curves: Mapping[tuple[str, str], Record], *, first: bool
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
    _title_column(axes[0], panel)


def _title_column(axes: Axes, panel: StreamPanel) -> None:
    """Write what the three charts show above the first; the layout must not widen it for the text."""
    axes.set_title("\n\n\n", pad=3)
    for text, lift, look_of in (
        (
            f"{labels.model_label(panel.model)}, {labels.budget_label(panel.budget)}",
            25,
            {"fontsize": 8.5, "fontweight": "bold", "color": INK},
        ),
        (labels.protected_label(panel.rows[0]), 14, {}),
        (count_note(panel.full), 4, {"fontsize": 6}),
    ):
        note_above(axes, text, lift=lift, **look_of).set_in_layout(False)
