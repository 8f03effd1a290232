"""How much work a configuration is: jobs, prefills, disk and tokens, known before anything starts."""

from __future__ import annotations

from collections import Counter

from kvatlas.grid.cells import PREFILL, PROMPTS, RECALL, Cell
from kvatlas.paths import figure_names
from kvatlas.pipeline import cost, machine
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import dependencies, staleness

GIB = 2**30


def jobs(workflow: Workflow) -> dict[str, int]:
    """Return the number of jobs of each rule that a run from scratch executes (fetching included)."""
    grid = workflow.grid
    inputs = {path for cell in grid.cells.values() for path in cell.inputs.values()}
    embedded = grid.embedded_models()
    counts = Counter(cell.kind for cell in grid.cells.values())
    return {
        "fetch_model": sum(path.startswith("resources/models/") for path in inputs) + bool(embedded),
        "fetch_text": sum(path.startswith("resources/text/") for path in inputs),
        **counts,
        "verify": len(grid.groups()),
        "embed": len(embedded),
        "aggregate": len(workflow.tables()),
        "results": 1,
        "figure": len(figure_names()),
        "pages": 1,
        "explorer": 1,
    }


def prefill_bytes(workflow: Workflow, cell: Cell) -> int:
    """Return the bytes of the keys and values that a prefill cell stores."""
    return cell.work.prompts * cell.work.context * workflow.sizes.kv_bytes(cell.model)


def describe(workflow: Workflow) -> str:
    """Return the plan as text."""
    grid = workflow.grid
    prefills, recalls = grid.of_kind(PREFILL), grid.of_kind(RECALL)
    sizes = [prefill_bytes(workflow, cell) for cell in prefills]
    counts = {name: count for name, count in jobs(workflow).items() if count}
    width = max(map(len, counts))
    lines = [f"run '{workflow.paths.run}': jobs from scratch"]
    lines += [f"  {name:<{width}}  {count:>6}" for name, count in counts.items()]
    lines += [f"  {'all':<{width}}  {sum(counts.values()):>6}"]
    lines += [
        f"prompts: {sum(cell.work.prompts for cell in grid.of_kind(PROMPTS))}, of which "
        f"{sum(cell.work.prompts for cell in prefills)} are prefilled, once each; "
        f"trials of recall cells: {sum(cell.work.prompts for cell in recalls)}",
        f"prefill: {_tokens(prefills):,} tokens; "
        f"decode: up to {sum(_decoded(cell) for cell in recalls):,} tokens, twice "
        "(own output and reference)",
        f"prefill files: {sum(sizes) / GIB:.2f} GiB of keys and values, the largest {max(sizes, default=0) / GIB:.2f}; "
        + ("kept (keep_prefill)" if workflow.keep_prefill else "each released when its group is done"),
        f"memory of a job: up to {max((workflow.sizes.cell_memory(cell) for cell in recalls), default=0):,} MB (estimate)",
    ]
    lines += [
        f"models: about {cost.model_bytes(workflow) / GIB:.1f} GiB of weights in 16 bits",
        f"GPU hours: about {cost.gpu_hours(workflow):.1f} on one GPU ({cost.ASSUMED})",
    ]
    left = unfinished(workflow)
    speed = machine.measured()
    lines += [
        f"left: {sum(1 for cell in left if cell.arm)} of {len(grid.trial_cells())} cells with trials; about "
        f"{cost.cpu_minutes(workflow, left, speed):.0f} minutes of one CPU thread on this machine "
        f"(measured: {speed.flops_per_s / 1e9:.0f} GFLOP/s, {speed.bytes_per_s / 1e9:.0f} GB/s), cores share them"
    ]
    missing = {dependencies.missing_experiment(kind) for kind in {cell.kind for cell in grid.cells.values()}} - {None}
    lines += [f"cannot run yet: {problem}" for problem in sorted(filter(None, missing))]
    return "\n".join(lines)


def unfinished(workflow: Workflow) -> list[Cell]:
    """Return the cells that a run would make: those that are not there or not current, and the prefills that they read."""
    cells = workflow.grid.cells
    left = [cell for cell in workflow.grid.trial_cells() if staleness.reasons(workflow.current, cell)]
    read = {path for cell in left for path in cell.inputs.values() if path in cells}
    return left + [cells[path] for path in sorted(read)]


def _tokens(cells: list[Cell]) -> int:
    return sum(cell.work.prompts * cell.work.context for cell in cells)


def _decoded(cell: Cell) -> int:
    return cell.work.prompts * int(cell.spec["new_tokens"])
