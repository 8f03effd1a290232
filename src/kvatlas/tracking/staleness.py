"""Is a stored file what the current configuration and code would make? `kvatlas check`, `why` and `verify` ask here.

A cell's first line holds its spec and its fingerprint; whether Snakemake still remembers the cell does not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.files import read_json
from kvatlas.grid.cells import RECALL, Cell
from kvatlas.paths import code_record
from kvatlas.tracking import checksums, dependencies
from kvatlas.tracking.current import Current
from kvatlas.tracking.fingerprint import Explanation, differences

_SHOWN = 5


def reasons(current: Current, cell: Cell) -> list[str]:
    """Return in words why the stored cell is not what would be made now; an empty list when it is."""
    if not Path(cell.output).is_file():
        return ["it does not exist"]
    if not checksums.is_intact(cell.output):
        return ["it is corrupt, or was edited after it was written"]
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
        return reasons(current, cell)
    if cell is not None:
        return code_changes(current, cell) + _upstream_changes(current, cell)
    made_from = _made_from(current, PurePosixPath(path).as_posix())
    reasons_found = [] if Path(path).is_file() else ["it does not exist"]
    reasons_found += changes_since(path, made_from.code)
    for table, code in made_from.tables.items():
        reasons_found += [f"{table}: {line}" for line in changes_since(table, code)]
    cells = made_from.cells
    stale = [cell for cell in cells if reasons(current, cell)]
    reasons_found += [f"cell {cell.output}: {reasons(current, cell)[0]}" for cell in stale[:_SHOWN]]
    return reasons_found + ([f"and {len(stale) - _SHOWN} more cells"] if len(stale) > _SHOWN else [])


@dataclass(frozen=True)
class _MadeFrom:
    """What a file that is no cell is made from: its own code, cells, and the tables in between with their code."""

    code: Explanation
    cells: Sequence[Cell]
    tables: Mapping[str, Explanation] = field(default_factory=dict)


def _made_from(current: Current, path: str) -> _MadeFrom:
    grid, paths = current.grid, current.grid.paths
    studies = {paths.table(study): study for study in grid.config["studies"]}
    if path in studies:
        return _MadeFrom(dependencies.step_code("aggregate", studies[path]), grid.trial_cells(studies[path]))
    for key in grid.groups():
        if path == paths.verified(*key):
            return _MadeFrom({}, grid.group(*key))
    for model in grid.embedded_models():
        if path == paths.embeddings(model):
            embedded = [cell for cell in grid.of_kind(RECALL) if cell.model == model]
            return _MadeFrom(current.embed_explanation(), embedded)
    step, subject = _step(current, path)
    tables = {table: dependencies.step_code("aggregate", study) for table, study in studies.items()}
    if step != "results":
        tables[f"{paths.report}/results.json"] = dependencies.step_code("results")
    return _MadeFrom(dependencies.step_code(step, subject, grid.config), grid.trial_cells(), tables)


def _step(current: Current, path: str) -> tuple[str, str]:
    """The step that makes a file of the whole run, and the figure that it draws."""
    paths = current.grid.paths
    name = PurePosixPath(path).stem
    if path in (paths.figure(name), *(f"{paths.report}/figures/{name}{suffix}" for suffix in (".png", ".svg"))):
        return "figure", name
    if path == paths.highlights():
        return "highlights", ""
    if path.startswith(f"{paths.report}/"):
        return {".md": "pages", ".html": "explorer"}.get(PurePosixPath(path).suffix, "results"), ""
    raise KvatlasError(f"{path}: run '{paths.run}' makes no such file; is the right --configfile given?")
