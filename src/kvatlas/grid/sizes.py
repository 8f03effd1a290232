"""How large the cells of a run are on its models: memory, GPUs, and how a batch is split to fit a stated memory.

Knows the grid and the models' shapes; the estimates themselves are `kvatlas.grid.memory`'s. Imports no torch.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from kvatlas.grid import policy_parameters
from kvatlas.grid.cells import Cell, Grid
from kvatlas.grid.memory import UNKNOWN_SHAPE, Footprint, footprint, token_bytes

_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class Sizes:
    """The sizes of the cells of a grid; `models` is the catalog, name -> entry."""

    def __init__(self, grid: Grid, models: Mapping[str, Mapping[str, Any]]) -> None:
        self.grid, self.models = grid, models
        self.device: str = grid.config.get("device", "auto")
        self.dtype: str = grid.config.get("dtype", "auto")
        self.memory_mb: int | None = grid.config.get("memory_mb")

    def require_memory(self) -> None:
        """Raise KvatlasError when `memory_mb` cannot hold one prompt of some cell."""
        for cell in self.grid.cells.values():
            self.split(cell)

    def split(self, cell: Cell) -> dict[str, int]:
        """Return how many prompts are measured together, `{"rows": n}`, where `memory_mb` holds fewer than the batch."""
        if self.memory_mb is None or not cell.work.splits:
            return {}
        rows = self._footprint(cell).batch_within(self.memory_mb, cell.name)
        return {"rows": rows} if rows < cell.work.at_once else {}

    def gpus(self) -> int:
        """Return the GPUs that a model-running job needs; `auto` counts on one where there is an NVIDIA driver."""
        return int(self.device == "cuda" or (self.device == "auto" and shutil.which("nvidia-smi") is not None))

    def cell_memory(self, cell: Cell) -> int:
        """Return an estimate of a cell's memory in MB."""
        return self._footprint(cell).of(self.split(cell).get("rows", cell.work.at_once))

    def shape(self, model: str) -> dict[str, int]:
        """Return the shape of a model as its catalog entry has it; the smallest one where it has none."""
        shape: dict[str, int] = self.models[model].get("shape", UNKNOWN_SHAPE)
        return shape

    def bytes_per_number(self) -> int:
        """Return the bytes of a number of the model and its cache."""
        return _BYTES.get(self.dtype, 2 if self.gpus() else 4)

    def kv_bytes(self, model: str) -> int:
        """Return the bytes of the keys and values of one token."""
        return token_bytes(self.shape(model), self.bytes_per_number())

    def _footprint(self, cell: Cell) -> Footprint:
        policy = cell.spec.get("policy", {"name": policy_parameters.FULL})
        queries = cell.spec.get("queries", False) or policy_parameters.reads_queries(policy)
        work = cell.work
        return footprint(
            self.shape(cell.model), self.bytes_per_number(), work.context, work.scored_tokens, queries=queries
        )
