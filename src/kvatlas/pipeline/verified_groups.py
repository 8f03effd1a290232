"""Verifying a group: its cells are complete, current and paired; then its prefill is released."""

from __future__ import annotations

from pathlib import Path

from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.files import checksum, write_json
from kvatlas.grid.cells import Cell, GroupKey
from kvatlas.pipeline import prefill_files
from kvatlas.tracking import checksums, staleness
from kvatlas.tracking.current import Current


def verify(current: Current, key: GroupKey, output: Path, *, keep_prefill: bool) -> None:
    """Check the cells of a group, record that in `output`, and release the group's prefill unless it is kept.

    Raises KvatlasError when a cell is broken (it is removed) or stale, or when arms did not answer the same prompts.
    """
    cells = current.grid.group(*key)
    if broken := [cell.output for cell in cells if _is_broken(cell.output)]:
        checksums.discard(broken)
    staleness.check(current, cells)
    prompts = {cell.output: _prompt_ids(cell) for cell in cells if "prompts" in cell.inputs}
    if len(set(prompts.values())) > 1:
        names = ", ".join(sorted(prompts))
        raise KvatlasError(f"{names}: these arms did not answer the same prompts; delete them and run again")
    sums = {cell.output: checksum(cell.output) for cell in cells}
    write_json(output, {"cells": sums, "prompts": len(next(iter(prompts.values()), ()))})
    checksums.record(output)
    if not keep_prefill:
        prefill_files.release(Path(current.grid.paths.prefill(*key)))


def _is_broken(path: str) -> bool:
    if not Path(path).is_file():
        return False
    try:
        cell_file.read(Path(path))
    except KvatlasError:
        return True
    return not checksums.is_intact(path)


def _prompt_ids(cell: Cell) -> tuple[str, ...]:
    return tuple(str(trial.get("id")) for trial in cell_file.read(Path(cell.output)).trials)
