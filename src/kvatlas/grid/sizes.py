"""How large the cells of a run are: prompts, tokens, memory, GPUs; and how a batch is split to fit a stated memory.

Knows the grid and the models' shapes; the estimates themselves are `kvatlas.grid.memory`'s. Imports no torch.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from kvatlas.grid import config, studies
from kvatlas.grid.cells import PREFILL, PROMPTS, RECALL, Cell, Grid
from kvatlas.grid.memory import UNKNOWN_SHAPE, Footprint, footprint, token_bytes
from kvatlas.lm.catalog import load_models
from kvatlas.paths import MODELS_FILE

# The first instance of a suite has nine tasks, the others seven.
TASKS_PER_INSTANCE = 9
_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


class Sizes:
    """The sizes of the cells of a validated configuration."""

    def __init__(self, configuration: config.Config, root: Path | str = ".") -> None:
        self.config = configuration
        self.grid: Grid = studies.grid(configuration)
        self.paths = self.grid.paths
        self.models = load_models(Path(root) / MODELS_FILE)
        self.memory_mb: int | None = configuration.get("memory_mb")

    def require_memory(self) -> None:
        """Raise KvatlasError when `memory_mb` cannot hold one prompt of some cell."""
        for cell in self.grid.cells.values():
            self.split(cell)

    def split(self, cell: Cell) -> dict[str, int]:
        """How many prompts are measured together, `{"rows": n}`, where `memory_mb` holds fewer than the cell has."""
        if self.memory_mb is None or cell.kind != RECALL:
            return {}
        rows = self._footprint(cell).batch_within(self.memory_mb, cell.name)
        return {"rows": rows} if rows < self._batch(cell) else {}

    def gpus(self) -> int:
        """GPUs that a model-running job needs; `auto` counts on one where there is an NVIDIA driver."""
        device = self.config.get("device", "auto")
        return int(device == "cuda" or (device == "auto" and shutil.which("nvidia-smi") is not None))

    def cell_memory(self, cell: Cell) -> int:
        """An estimate of a cell's memory in MB."""
        return self._footprint(cell).of(self.split(cell).get("rows", self._batch(cell)))

    def shape(self, model: str) -> dict[str, int]:
        """The shape of a model as its catalog entry tells it; the smallest one where it tells none."""
        shape: dict[str, int] = self.models[model].get("shape", UNKNOWN_SHAPE)
        return shape

    def _footprint(self, cell: Cell) -> Footprint:
        # A suite's answers are decoded token by token; recall scores whole answers at once.
        new_tokens = cell.spec.get("new_tokens", 1) if cell.kind == RECALL else 1
        return footprint(self.shape(cell.model), self.bytes_per_number(), self.context_of(cell), new_tokens)

    def _batch(self, cell: Cell) -> int:
        """How many prompts the cell holds at once unless it is split."""
        return min(self.prompts_of(cell), int(cell.spec.get("batch", sys.maxsize)))

    def bytes_per_number(self) -> int:
        """Bytes of a number of the model and its cache."""
        return _BYTES.get(self.config.get("dtype", "auto"), 2 if self.gpus() else 4)

    def kv_bytes(self, model: str) -> int:
        """Bytes of the keys and values of one token."""
        return token_bytes(self.shape(model), self.bytes_per_number())

    def prompts_of(self, cell: Cell) -> int:
        """How many prompts the cell runs."""
        spec = cell.spec
        if cell.kind in (PREFILL, RECALL):
            prompts = self.grid.cells[self.paths.prompts(cell.study, cell.model, cell.group)].spec
            return len(prompts["seeds"]) * len(prompts["depths"])
        if cell.kind == PROMPTS:
            return len(spec.get("instances", [0])) * len(spec.get("seeds", [0])) * len(spec.get("depths", [0]))
        if cell.kind == "task_suite":
            prompts = self.grid.cells[cell.inputs["prompts"]].spec
            return TASKS_PER_INSTANCE * len(prompts["instances"])
        return int(spec.get("prompts", 1))

    def context_of(self, cell: Cell) -> int:
        """Tokens of one of the cell's prompts; a question without its context is counted as 64."""
        return (
            64
            if cell.spec.get("mode") == studies.NO_CONTEXT
            else int(cell.spec.get("context", cell.spec.get("tokens", 0)))
        )
