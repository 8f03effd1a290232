"""What a run costs on a GPU before it starts: forward passes, tokens, and from them hours; and the models' disk.

Rough on purpose, and says so: a forward pass costs its arithmetic, and at least one reading of the weights or the
launching of its layers. Knows cells by their specs and models by their shapes; imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvatlas.grid.cells import PREFILL, PROMPTS, Cell
from kvatlas.grid.memory import weights
from kvatlas.pipeline.workflow import Workflow

# A data-centre GPU that is kept busy by one process: sustained arithmetic in bf16, memory, and the time that Python and
# the driver need to launch one layer.
FLOPS_PER_S = 1e14
BYTES_PER_S = 1e12
LAYER_SECONDS = 0.5e-3
# Imports, and the loading of the weights.
START_SECONDS = 15.0
ASSUMED = f"{FLOPS_PER_S / 1e12:.0f} TFLOP/s, {BYTES_PER_S / 1e12:.0f} TB/s, {START_SECONDS:.0f} s to start a cell"


@dataclass(frozen=True)
class Effort:
    """Forward passes of a cell, and the tokens in all of them."""

    forwards: int
    tokens: int

    def seconds(self, shape: dict[str, int]) -> float:
        """Return the seconds on the assumed GPU, start included."""
        numbers = weights(shape)
        least = max(2 * numbers / BYTES_PER_S, shape["layers"] * LAYER_SECONDS)
        return START_SECONDS + self.forwards * least + 2 * numbers * self.tokens / FLOPS_PER_S


def effort(workflow: Workflow, cell: Cell) -> Effort:
    """Count what a cell runs through its model."""
    spec, prompts, context = cell.spec, workflow.prompts_of(cell), workflow.context_of(cell)
    new_tokens = spec.get("new_tokens", 0)
    pieces = -(-context // (spec.get("block") or context or 1))
    if cell.kind == PREFILL:
        # Prompts go one by one; the reference is decoded as a batch.
        return Effort(prompts * pieces + new_tokens, prompts * (context + new_tokens))
    if cell.kind == "online_lm":
        passages = spec.get("passages", 1)
        return Effort(passages * pieces, passages * context)
    if "new_tokens" in spec:
        # Own output token by token, the reference and the right answer at once; a suite streams its prompts before.
        streamed = (pieces, prompts * context) if cell.kind == "task_suite" else (0, 0)
        return Effort(new_tokens + 2 + streamed[0], 3 * prompts * new_tokens + streamed[1])
    return Effort(prompts, prompts * context)


def gpu_hours(workflow: Workflow) -> float:
    """Return the hours that all cells that run a model take, one after the other."""
    cells = [cell for cell in workflow.grid.cells.values() if cell.kind != PROMPTS]
    return sum(effort(workflow, cell).seconds(workflow.shape(cell.model)) for cell in cells) / 3600


def model_bytes(workflow: Workflow) -> int:
    """Return the bytes of the fetched weights, taken as 16-bit numbers."""
    names = {cell.model for cell in workflow.grid.cells.values()}
    return sum(2 * weights(workflow.shape(name)) for name in names)
