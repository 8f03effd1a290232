"""F6: reference, gold and self perplexity side by side over the budgets, on one shared axis."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import (
    axes_grid,
    legend_below,
    legend_height,
    log_value_axis,
    mark,
    method_handle,
    note_above,
)
from kvatlas.reporting.figures.panels import Panel, by_method, count_note, needle, split
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.style import FAINT, INK, method_style

TITLE = "Three perplexities of the same arms"
STUDY = "needle"
CAPTION = (
    "Reference PPL (teacher-forcing the full cache's own continuation), gold PPL (teacher-forcing the "
    "true answer) and self PPL (each arm scored on the text it wrote itself) at each budget, on one "
    "shared log axis. 1x is the full cache. Vertical bars on reference PPL are 95% t intervals over "
    "haystacks; the other two have no interval."
)
_METRICS = (("ref_ppl", "Reference PPL"), ("gold_ppl", "Gold PPL"), ("self_ppl", "Self PPL"))


def available(results: Record) -> bool:
    """Return whether any compressed arm has a perplexity."""
    return any(row["method"] != "full" for row in _rows(results))


def alt(results: Record) -> str:
    """Describe the figure and its axes."""
    budgets = sorted({str(row["budget"]) for row in _rows(results)}, key=labels.budget_key)
    return (
        "Three line charts with a shared log axis: reference, gold and self perplexity of every method at "
        f"{', '.join(labels.budget_label(budget) for budget in budgets)}. "
        "The numbers are in the main table and results.json."
    )


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one row of three charts per model and question mode."""
    panels = [panel for panel in split(_rows(results)) if any(row["method"] != "full" for row in panel.rows)]
    metrics = [m for m in _METRICS if any(labels.known(row.get(m[0])) for panel in panels for row in panel.rows)]
    methods = by_method(row for panel in panels for row in panel.rows)
    height = 2.75 * len(panels) + legend_height(len(methods), 3) + 0.2
    figure, grid = axes_grid(len(panels), len(metrics), height, sharey="row")
    for line, panel in enumerate(panels):
        for column, (key, name) in enumerate(metrics):
            _draw_chart(grid[line][column], panel.rows, key)
            # The blank lines reserve room for the panel's title and n, which run over all three charts.
            grid[line][column].set_title(f"\n\n\n{name}", fontweight="normal", pad=3)
        _value_axis(grid[line][0], panel, [key for key, _ in metrics])
        _title_all(grid[line][0], panel)
    legend_below(figure, [method_handle(method) for method in methods], columns=3)
    return figure


def _rows(results: Record) -> list[Record]:
    rows = needle(results, "rows")
    return [row for row in rows if labels.known(row.get("ref_ppl")) and row.get("quantizer", "none") == "none"]


def _draw_chart(axes: Axes, rows: Sequence[Record], key: str) -> None:
    budgets = sorted({str(row["budget"]) for row in rows}, key=labels.budget_key)
    full = next((row for row in rows if row["method"] == "full"), None)
    methods = {method: arms for method, arms in by_method(rows).items() if method != "full"}
    for rank, (method, arms) in enumerate(methods.items()):
        look = method_style(method)
        shift = (rank / max(1, len(methods) - 1) - 0.5) * 0.3
        joined = [row for row in [full, *arms] if row is not None and labels.known(row.get(key))]
        # The full cache is one point for all; compressed arms are set side by side so that
        # equal values can be seen.
        positions = [budgets.index(str(row["budget"])) + (0 if row is full else shift) for row in joined]
        axes.plot(
            positions,
            [row[key] for row in joined],
            color=look.color,
            linestyle=look.linestyle,
            linewidth=0.9,
            alpha=0.8,
            zorder=2,
        )
        for x, row in zip(positions, joined, strict=True):
            if row is full:
                continue
            if key == "ref_ppl" and row.get("ref_ppl_ci"):
                axes.plot([x, x], row["ref_ppl_ci"], color=look.color, linewidth=0.8, alpha=0.45, zorder=2)
            mark(axes, x, row[key], look, markersize=4.5)
    if full is not None and labels.known(full.get(key)):
        look = method_style("full")
        mark(axes, 0, full[key], look, markersize=4.5, zorder=4)
    axes.set_xticks(range(len(budgets)), [labels.budget_label(budget) for budget in budgets])
    axes.set_xlim(-0.35, len(budgets) - 0.65)
    axes.set_xlabel("Budget")
    axes.grid(axis="y", color=FAINT, linewidth=0.5)


def _value_axis(axes: Axes, panel: Panel, keys: Sequence[str]) -> None:
    values = [row[key] for row in panel.rows for key in keys if labels.known(row.get(key))]
    bounds = [bound for row in panel.rows for bound in (row.get("ref_ppl_ci") or []) if labels.known(bound)]
    low, high = min([*values, *bounds]), max([*values, *bounds])
    log_value_axis(axes, low, high)
    axes.set_ylabel("Perplexity (log axis)")


def _title_all(axes: Axes, panel: Panel) -> None:
    """Write the panel's title and n over all three charts; the layout must not widen the first chart for
    it.
    """
    title = note_above(axes, panel.title, lift=26, fontsize=8.5, fontweight="bold", color=INK)
    count = note_above(axes, count_note(panel.rows), lift=15)
    for note in (title, count):
        note.set_in_layout(False)
