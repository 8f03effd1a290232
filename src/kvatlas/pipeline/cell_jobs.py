"""Running one cell, for a job of the workflow and for `kvatlas run` alike.

Brings together what an experiment does not know: prefill files that may have been released, the cells whose outputs are
embedded, and models that are tracked by a file and read as a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.experiments import run_cell
from kvatlas.grid import unfold
from kvatlas.grid.cells import EMBED, PREFILL, RECALL
from kvatlas.grid.studies import all_studies
from kvatlas.paths import PROVENANCE, timing_of
from kvatlas.pipeline import prefill_files
from kvatlas.tracking import checksums, finished_run

_OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "not enough memory")

# Keys of a study that bound what a cell has in memory at once.
_SMALLER = (
    ("seeds_per_shard", "lower", "prompts in a cell"),
    ("instances_per_shard", "lower", "prompts in a cell"),
    ("block", "set", "queries per prefill chunk"),
)

Spec = Mapping[str, Any]


def run(spec: Spec, inputs: Mapping[str, Path], output: Path, *, fingerprint: str) -> None:
    """Run the cell of `spec`, write `output` and keep its checksum.

    Raises KvatlasError when an input is broken (it is removed), or when memory runs out.
    """
    checksums.require(inputs.values())
    try:
        _run(spec, {name: _as_read(path) for name, path in inputs.items()}, output, fingerprint)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise KvatlasError(_memory_advice(spec, error)) from error
    checksums.record(*(path for path in (output, timing_of(output)) if path.is_file()))


def _run(spec: Spec, inputs: dict[str, Path], output: Path, fingerprint: str) -> None:
    if spec["kind"] == PREFILL:
        prefill_files.build(spec, inputs, output, fingerprint=fingerprint)
        return
    if "prefill" in inputs:
        inputs["prefill"] = prefill_files.ensure(inputs["prefill"], inputs)
    if spec["kind"] == EMBED:
        grid = unfold.grid(spec["config"])
        recalls = [cell for cell in grid.of_kind(RECALL) if cell.model == spec["model"]]
        finished_run.require_cells(grid, recalls)
        inputs |= {cell.output: Path(cell.output) for cell in recalls}
    run_cell.run(spec, inputs, output, fingerprint=fingerprint)


def _as_read(path: Path) -> Path:
    """A model is tracked by its provenance file and read as a folder."""
    return path.parent if path.name == PROVENANCE else path


def _is_out_of_memory(error: BaseException) -> bool:
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in _OUT_OF_MEMORY)


def _memory_advice(spec: Spec, error: BaseException) -> str:
    keys = ("kind", "study", "model", "arm", "mode", "context", "shard")
    name = " ".join(str(spec[key]) for key in keys if key in spec)
    reason = (str(error).splitlines() or ["no memory"])[0]
    ways = ["state memory_mb (batches are split to fit)"]
    if record := all_studies().get(spec.get("study", "")):
        ways += [f"{verb} studies.{record.name}.{key} ({what})" for key, verb, what in _SMALLER if key in record.keys]
    return f"cell {name}: out of memory ({reason}); {' or '.join(ways)}, then run the same command again"
