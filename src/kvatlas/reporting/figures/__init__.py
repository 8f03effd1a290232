"""The figures of the report. A figure is one module here named `f<number>_<topic>`; adding the file is
enough.

Each module has TITLE and CAPTION (Markdown-free text), `available(results) -> bool` and `draw(results,
trials) -> Figure | None`, which returns None exactly when `available` is false. Figures read aggregates
and trials only; they import neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from matplotlib.figure import Figure

from kvatlas.errors import KvatlasError
from kvatlas.paths import figure_names
from kvatlas.reporting.style import save


class FigureModule(Protocol):
    """What a figure's module offers."""

    TITLE: str
    CAPTION: str

    def available(self, results: Mapping[str, Any]) -> bool:
        """Return whether the results hold what the figure shows."""

    def draw(self, results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Figure | None:
        """Draw the figure, or return None when there is nothing to show."""

    def alt(self, results: Mapping[str, Any]) -> str:
        """Describe the picture in words for readers who cannot see it."""


def load(name: str) -> FigureModule:
    """Import the module of one figure. Raises KvatlasError for a name that is not a figure."""
    if name not in figure_names():
        raise KvatlasError(f"figure '{name}' does not exist; the figures are {', '.join(figure_names())}")
    return cast(FigureModule, importlib.import_module(f"{__name__}.{name}"))


def write(name: str, results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw one figure into `directory`/<name>.png and .svg; write nothing when the results do not hold its
    data.
    """
    figure = load(name).draw(results, trials)
    return [] if figure is None else save(figure, directory / name)
