"""F99: rows of the needle study, by model."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from kvatlas.reporting.figures.layout import axes_grid
from kvatlas.reporting.study_rows import Record, models_of, rows_of

TITLE = "Rows by model"
STUDY = "needle"
CAPTION = "The rows of the needle study's table, by model."


def available(results: Record) -> bool:
    """Return whether the needle study was run."""
    return bool(rows_of(results, "needle"))


def alt(results: Record) -> str:
    """Describe the figure."""
    return f"Bars: rows of {len(models_of(rows_of(results, 'needle')))} models."


def draw(results: Record, trials: Sequence[Record]) -> Figure:
    """Draw one bar per model."""
    models = models_of(rows_of(results, "needle"))
    figure, grid = axes_grid(1, 1, 2.0)
    grid[0][0].bar(models, [len(rows_of(results, "needle", model=model)) for model in models])
    return figure
