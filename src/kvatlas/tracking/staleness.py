"""Is a stored file what the current configuration and code would make? `kvatlas check`, `why` and `verify` ask here.

A cell's first line holds its spec and its fingerprint; whether Snakemake still remembers the cell does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.files import read_json
from kvatlas.grid.cells import PROMPTS, Cell
from kvatlas.paths import code_record, timing_of
from kvatlas.tracking import checksums, finished_run
from kvatlas.tracking.current import Current
from kvatlas.tracking.fingerprint import Explanation, differences
from kvatlas.tracking.finished_run import Job

_SHOWN = 5
_NOT_AS_WRITTEN = "it is corrupt, or was edited after it was written"


def reasons(current: Current, cell: Cell) -> list[str]:
    """Return in words why the stored cell is not what would be made now; an empty list when it is."""
    if not Path(cell.output).is_file():
        return ["it does not exist"]
    if not checksums.is_intact(cell.output):
        return [_NOT_AS_WRITTEN]
    stored = cell_file.read_header(cell.output)
    now = json.loads(json.dumps(current.spec(cell)))
    before = stored.spec
    reasons_found = [
        f"configuration: {key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted({*before, *now} - {"upstream"})
        if before.get(key) != now.get(key)
    ]
    if stored.fingerprint != current.code(cell.output):
        reasons_found += code_changes(current, cell) or ["code: its fingerprint changed"]
    if before.get("upstream") != now["upstream"]:
        reasons_found += _upstream_changes(current, cell) or ["inputs: what they are made from changed"]
    return reasons_found


def code_changes(current: Current, cell: Cell) -> list[str]:
    """List which files or packages changed since the cell was made, as far as its code record tells."""
    return changes_since(cell.output, current.explanation(cell))


def changes_since(output: str, now: Explanation) -> list[str]:
    """List which parts of an output's recorded code differ from `now`; empty when nothing was recorded."""
    record = code_record(output)
    if record is None or not record.is_file():
        return []
    return [f"code: {line}" for line in differences(read_json(record), now)]


def _upstream_changes(current: Current, cell: Cell) -> list[str]:
    reasons_found = []
    for name, path in cell.inputs.items():
        source = current.grid.cells.get(path)
        if source is not None:
            lines = code_changes(current, source) + _upstream_changes(current, source)
            reasons_found += [f"input {name}: {line}" for line in lines]
    return list(dict.fromkeys(reasons_found))


def check(current: Current, cells: Iterable[Cell]) -> int:
    """Compare stored cells with the current configuration and code, and return how many were compared.

    Raises KvatlasError that lists cells which are missing or stale.
    """
    stale, count = [], 0
    for cell in cells:
        count += 1
        if reasons_found := reasons(current, cell):
            stale.append(f"{cell.output} ({reasons_found[0]})")
    if stale:
        more = f" and {len(stale) - _SHOWN} more" if len(stale) > _SHOWN else ""
        raise KvatlasError(
            f"{len(stale)} of {count} cells are not what the current code and configuration make: "
            f"{', '.join(stale[:_SHOWN])}{more}; delete them and run snakemake again, or run `kvatlas check --accept` "
            "where an edit of the code has changed no number"
        )
    return count


def explain_rerun(current: Current, path: str) -> list[str]:
    """Return in words what would make the file at `path` again; an empty list when it is up to date.

    Raises KvatlasError when the run has no such file.
    """
    cell = current.grid.find(path)
    if cell is not None and cell.arm:
        return _shown_cells(current, [cell], named=False)
    if cell is not None:
        lost = _state(cell.output) if cell.kind == PROMPTS else []
        return lost + code_changes(current, cell) + _upstream_changes(current, cell)
    jobs = finished_run.jobs(current.grid)
    job = _job_of(current, jobs, PurePosixPath(path).as_posix())
    upstream = _upstream_jobs(jobs, job)
    lines = _job_reasons(current, job, path)
    for before in upstream:
        lines += [f"{before.outputs[0]}: {line}" for line in _job_reasons(current, before, before.outputs[0])]
    read = {name for each in (job, *upstream) for name in each.inputs}
    return lines + _shown_cells(current, [cell for cell in current.grid.trial_cells() if cell.output in read])


def _shown_cells(current: Current, cells: Iterable[Cell], *, named: bool = True) -> list[str]:
    """Why cells would be made again: the first ones, or one that goes without its name."""
    stale = {cell.output: found for cell in cells if (found := _cell_reasons(current, cell))}
    if not named:
        return next(iter(stale.values()), [])
    lines = [f"cell {output}: {found[0]}" for output, found in list(stale.items())[:_SHOWN]]
    return lines + ([f"and {len(stale) - _SHOWN} more cells"] if len(stale) > _SHOWN else [])


def _cell_reasons(current: Current, cell: Cell) -> list[str]:
    """The reasons of a cell itself, of the sidecar of its timing, and of prompts that are lost."""
    found = reasons(current, cell)
    if not found and finished_run.is_damaged(cell, finished_run.verified_sums(current.grid, [cell.group_key])):
        found = [f"it or {timing_of(cell.output)} is not as it was written"]
    if prompts := cell.inputs.get("prompts"):
        found = found + [f"input prompts: {line}" for line in _state(prompts)]
    return found


def _state(path: str) -> list[str]:
    if not Path(path).is_file():
        return ["it does not exist"]
    return [] if checksums.is_intact(path) else [_NOT_AS_WRITTEN]


def _job_reasons(current: Current, job: Job, path: str) -> list[str]:
    """Why a job would run again by itself; `path` is the one of its files that is asked about."""
    lines = []
    for output in job.outputs:
        named = "" if output == path else f"{output}: "
        if not Path(output).is_file():
            lines.append(f"{named}it does not exist")
        elif finished_run.is_spoiled(output):
            lines.append(f"{named}{_NOT_AS_WRITTEN}")
    if not lines and path in current.grid.verified():
        lines += _group_changes(current, path)
    return lines + changes_since(job.outputs[0], job.code(current))


def _group_changes(current: Current, path: str) -> list[str]:
    """Which cells joined or left a group since it was verified."""
    before = set(read_json(path)["cells"])
    now = {
        cell.output
        for key in current.grid.groups()
        if current.grid.paths.verified(*key) == path
        for cell in current.grid.group(*key)
    }
    return [f"configuration: the group has no cell {cell} any more" for cell in sorted(before - now)] + [
        f"configuration: the group has a new cell {cell}" for cell in sorted(now - before)
    ]


def _upstream_jobs(jobs: Sequence[Job], job: Job) -> list[Job]:
    """The jobs whose files a job reads, directly or not, the nearest first."""
    read, found = set(job.inputs), []
    for before in reversed(jobs):
        if read & set(before.outputs):
            read |= set(before.inputs)
            found.append(before)
    return found


def _job_of(current: Current, jobs: Sequence[Job], path: str) -> Job:
    """The job that writes a file; that of a picture is its figure's."""
    paths, name = current.grid.paths, PurePosixPath(path).stem
    pictures = [f"{paths.report}/figures/{name}{suffix}" for suffix in (".png", ".svg")]
    written = paths.figure(name) if path in pictures else path
    for job in jobs:
        if written in job.outputs:
            return job
    raise KvatlasError(f"{path}: run '{paths.run}' makes no such file; is the right --configfile given?")
