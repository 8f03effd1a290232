"""Declaring that an edit of the code has changed no number: stored cells are signed for the code as it is now.

For refactorings. What a cell was really made by stays in its header, under `accepted_from`.
"""

from __future__ import annotations

from pathlib import Path

from kvatlas.files import checksum, read_json, read_jsonl, write_json, write_jsonl
from kvatlas.grid.cells import Cell
from kvatlas.paths import code_record
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import checksums
from kvatlas.tracking.staleness import header, reasons


def accept(workflow: Workflow) -> list[str]:
    """Sign every stored cell whose code alone has changed, and return their paths.

    Cells that are missing, broken, or made from another configuration stay as they are: only a run can make those.
    """
    accepted = [cell for cell in workflow.grid.trial_cells() if _is_code_only(reasons(workflow, cell))]
    for cell in accepted:
        _sign(workflow, cell)
    sources = {path for cell in accepted for path in cell.inputs.values() if path in workflow.grid.cells}
    for path in sources:
        _record_code(workflow, workflow.grid.cells[path])
    for place in {(cell.study, cell.model, cell.group) for cell in accepted}:
        _renew_verified(workflow, *place)
    return [cell.output for cell in accepted]


def _is_code_only(found: list[str]) -> bool:
    return bool(found) and all("code: " in reason and reason.startswith(("code: ", "input ")) for reason in found)


def _sign(workflow: Workflow, cell: Cell) -> None:
    """Write the cell's trials again behind a header of the current code."""
    stored = header(cell.output)
    trials = read_jsonl(cell.output)[1:]
    signed = stored | {"cell": workflow.spec(cell), "fingerprint": workflow.code(cell.output)}
    signed["accepted_from"] = stored.get("accepted_from", stored["fingerprint"])
    write_jsonl(cell.output, [signed, *trials])
    checksums.record(cell.output)
    _record_code(workflow, cell)


def _record_code(workflow: Workflow, cell: Cell) -> None:
    record = code_record(cell.output)
    if record is not None:
        write_json(record, workflow.explanation(cell))


def _renew_verified(workflow: Workflow, study: str, model: str, group: str) -> None:
    """Put the new checksums into the record of the group, so that it still says which files were verified."""
    record = Path(workflow.paths.verified(study, model, group))
    if record.is_file():
        sums = {cell.output: checksum(cell.output) for cell in workflow.grid.group(study, model, group)}
        write_json(record, read_json(record) | {"cells": sums})
