"""Declaring that an edit of the code has changed no number: stored cells are signed for the code as it is now.

For refactorings, renamed keys and modes included. What a cell was really made by stays in its header, under
`accepted_from`.
"""

from __future__ import annotations

from pathlib import Path

from kvatlas.experiments import cell_file
from kvatlas.files import checksum, read_json, write_json
from kvatlas.grid.cells import Cell
from kvatlas.paths import code_record
from kvatlas.tracking import checksums, renamed_files
from kvatlas.tracking.current import Current
from kvatlas.tracking.staleness import reasons


def accept(current: Current) -> list[str]:
    """Sign every stored cell whose code alone has changed, and return their paths.

    What was stored under names that were given up is renamed first, in every cell. Cells that are missing, broken, or
    made from another configuration are not signed: only a run can make those.
    """
    renamed_files.bring_over(current.grid.paths)
    accepted = [cell for cell in current.grid.trial_cells() if _is_code_only(reasons(current, cell))]
    for cell in accepted:
        _sign(current, cell)
    sources = {path for cell in accepted for path in cell.inputs.values() if path in current.grid.cells}
    for path in sources:
        _record_code(current, current.grid.cells[path])
    for key in {cell.group_key for cell in accepted}:
        _renew_verified(current, *key)
    return [cell.output for cell in accepted]


def _is_code_only(why: list[str]) -> bool:
    return bool(why) and all("code: " in reason and reason.startswith(("code: ", "input ")) for reason in why)


def _sign(current: Current, cell: Cell) -> None:
    """Write the cell's trials again behind a header of the current code."""
    stored = cell_file.read(Path(cell.output))
    cell_file.write(
        Path(cell.output),
        current.spec(cell),
        current.code(cell.output),
        stored.trials,
        accepted_from=stored.accepted_from or stored.fingerprint,
    )
    checksums.record(cell.output)
    _record_code(current, cell)


def _record_code(current: Current, cell: Cell) -> None:
    record = code_record(cell.output)
    if record is not None:
        write_json(record, current.explanation(cell))


def _renew_verified(current: Current, study: str, model: str, group: str) -> None:
    """Put the new checksums into the record of the group; without one where cells are missing, it is verified again."""
    record = Path(current.grid.paths.verified(study, model, group))
    cells = [cell.output for cell in current.grid.group(study, model, group)]
    if not all(Path(path).is_file() for path in cells):
        record.unlink(missing_ok=True)
    elif record.is_file():
        write_json(record, read_json(record) | {"cells": {path: checksum(path) for path in cells}})
        checksums.record(record)
