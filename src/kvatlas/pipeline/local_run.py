"""Running the cells of a grid in this process, one after another, without the workflow: `kvatlas run` and `kvatlas try`.

A cell that is there, made by this code from these inputs, is kept, so that a run that was stopped goes on where it was.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.grid.cells import PREFILL, PROMPTS, Cell, Grid
from kvatlas.grid.sizes import Sizes
from kvatlas.paths import tensors_of
from kvatlas.pipeline import cell_jobs, prefill_files
from kvatlas.tracking.current import Current

Catalog = Mapping[str, Mapping[str, Any]]


class LocalRun:
    """The cells of a grid as they are run here; `models` and `texts` are the catalogs, name -> entry."""

    def __init__(self, grid: Grid, models: Catalog, texts: Catalog) -> None:
        self.grid, self.models, self.texts = grid, models, texts
        self.current = Current(Sizes(grid, models), texts)
        self._made: set[str] = set()

    def is_done(self, cell: Cell) -> bool:
        """Return whether the trials of a cell are there, made by the current code from the current inputs."""
        try:
            header = cell_file.read_header(cell.output)
        except KvatlasError:
            return False
        return header.spec == self.current.spec(cell) and header.fingerprint == self.current.code(cell.output)

    def left(self, cells: Iterable[Cell]) -> list[Cell]:
        """Return the cells of trials that are still to be run."""
        return [cell for cell in cells if cell.kind not in (PROMPTS, PREFILL) and not self.is_done(cell)]

    def run(self, cell: Cell) -> None:
        """Run a cell, and first what it reads where this process has not made it yet."""
        for path in cell.inputs.values():
            if path in self.grid.cells and path not in self._made:
                self.run(self.grid.cells[path])
                self._made.add(path)
        inputs = {name: Path(path) for name, path in cell.inputs.items()}
        spec, code = self.current.spec(cell), self.current.code(cell.output)
        cell_jobs.run(spec, inputs, Path(cell.output), fingerprint=code)

    def release(self, cells: Iterable[Cell]) -> None:
        """Delete the prefilled caches that some cells read."""
        for path in {path for cell in cells for path in cell.inputs.values() if path in self.grid.cells}:
            if tensors_of(path).is_file():
                prefill_files.release(Path(path))
                self._made.discard(path)
