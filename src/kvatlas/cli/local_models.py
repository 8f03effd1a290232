"""The models and texts of cells that run in this process: fetched first, and each model loaded once for all of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvatlas.paths import model_file, text_file
from kvatlas.pipeline.local_run import LocalRun


@contextmanager
def opened(local: LocalRun) -> Iterator[None]:
    """Fetch what the cells of a run read, and load each model once inside."""
    from kvatlas.lm.loading import loaded_once
    from kvatlas.lm.sources import fetch_model
    from kvatlas.lm.texts import fetch_text

    inputs = {path for cell in local.grid.cells.values() for path in cell.inputs.values()}
    for name, entry in local.models.items():
        if model_file(name) in inputs:
            fetch_model(name, entry, Path(model_file(name)).parent)
    for name, entry in local.texts.items():
        if text_file(name) in inputs:
            fetch_text(name, entry, Path(text_file(name)))
    with loaded_once():
        yield
