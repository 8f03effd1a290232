"""What a run costs on a GPU before it starts: forward passes, tokens, and from them hours; and the models' disk.

Rough on purpose, and says so: a forward pass costs its arithmetic, and at least one reading of the weights or the
launching of its layers. Knows cells by their work and models by their shapes; imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvatlas.grid.cells import PROMPTS, Cell
from kvatlas.grid.memory import weights
from kvatlas.pipeline.machine import Machine
from kvatlas.pipeline.workflow import Workflow

# A data-centre GPU that is kept busy by one process: sustained arithmetic in bf16, memory, and the time that Python and
# the driver need to launch one layer.
FLOPS_PER_S = 1e14
BYTES_PER_S = 1e12
LAYER_SECONDS = 0.5e-3
# Imports, and the loading of the weights.
START_SECONDS = 15.0
CPU_START_SECONDS = 1.0
"""A cell of a local run is a fork of a process that has imported torch; it loads the weights."""
ASSUMED = f"{FLOPS_PER_S / 1e12:.0f} TFLOP/s, {BYTES_PER_S / 1e12:.0f} TB/s, {START_SECONDS:.0f} s to start a cell"


def cell_seconds(cell: Cell, shape: dict[str, int]) -> float:
    """Return the seconds of a cell on the assumed GPU, start included."""
    numbers = weights(shape)
    forward_seconds = max(2 * numbers / BYTES_PER_S, shape["layers"] * LAYER_SECONDS)
    return START_SECONDS + cell.work.forwards * forward_seconds + 2 * numbers * cell.work.tokens / FLOPS_PER_S


def gpu_hours(workflow: Workflow) -> float:
    """Return the hours that all cells that run a model take, one after the other."""
    cells = [cell for cell in workflow.grid.cells.values() if cell.kind != PROMPTS]
    return sum(cell_seconds(cell, workflow.sizes.shape(cell.model)) for cell in cells) / 3600


def cpu_minutes(workflow: Workflow, cells: Iterable[Cell], machine: Machine) -> float:
    """Return the minutes that cells take on one CPU thread of `machine`, one after the other.

    A forward pass costs its arithmetic, and at least one reading of the weights in fp32.
    """
    seconds = 0.0
    for cell in cells:
        if cell.kind != PROMPTS:
            numbers = weights(workflow.sizes.shape(cell.model))
            reading = cell.work.forwards * 4 * numbers / machine.bytes_per_s
            seconds += CPU_START_SECONDS + max(reading, 2 * numbers * cell.work.tokens / machine.flops_per_s)
    return seconds / 60


def model_bytes(workflow: Workflow) -> int:
    """Return the bytes of the fetched weights, taken as 16-bit numbers."""
    names = {cell.model for cell in workflow.grid.cells.values()}
    return sum(2 * weights(workflow.sizes.shape(name)) for name in names)
