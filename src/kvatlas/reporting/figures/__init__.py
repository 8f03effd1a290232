"""The figures of the report. A figure is one module here named `f<number>_<topic>`; adding the file is
enough.

Each module has TITLE and CAPTION (Markdown-free text), STUDY (on whose page it stands; empty for all),
`available(results) -> bool`, `alt(results) -> str` and `draw(results, trials) -> Figure`, which is called only when
`available` is true, under the project's style. Figures read aggregates and trials only; they import neither torch nor
transformers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from matplotlib.figure import Figure

from kvatlas.errors import KvatlasError
from kvatlas.paths import figure_names
from kvatlas.reporting.style import save, styled


class FigureModule(Protocol):
    """What a figure's module offers."""

    TITLE: str
    STUDY: str
    CAPTION: str

    def available(self, results: Mapping[str, Any]) -> bool:
        """Return whether the results hold what the figure shows."""

    def draw(self, results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Figure:
        """Draw the figure; called only where it is available."""

    def alt(self, results: Mapping[str, Any]) -> str:
        """Describe the picture in words for readers who cannot see it."""


def load(name: str) -> FigureModule:
    """Import the module of one figure. Raises KvatlasError for a name that is not a figure."""
    if name not in figure_names():
        raise KvatlasError(f"figure '{name}' does not exist; the figures are {', '.join(figure_names())}")
    return cast(FigureModule, importlib.import_module(f"{__name__}.{name}"))


@styled
def draw(name: str, results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw one figure in the project's style, or return None when the results do not hold its data."""
    module = load(name)
    return module.draw(results, trials) if module.available(results) else None


def write(name: str, results: Mapping[str, Any], trials: Sequence[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw one figure into `directory`/<name>.png and .svg; write nothing when the results do not hold its
    data.
    """
    figure = draw(name, results, trials)
    return [] if figure is None else save(figure, directory / name)
