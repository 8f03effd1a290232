"""Which files a finished run consists of, which job writes each, and which are lost or no longer as they were written.

`rule all` names these files, so that what is lost is made again; what was damaged is set aside first, and is lost then.
Prefills are no part of a finished run: they are working files, made when a cell needs them. Knows paths, code and
checksums; must not know how a job does its work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import checksum, read_json
from kvatlas.grid import unfold
from kvatlas.grid.cells import PROMPTS, Cell, Grid, GroupKey
from kvatlas.paths import DATA_FILES, EXPLORER, PAGES, figure_names, timing_of
from kvatlas.tracking import checksums, dependencies
from kvatlas.tracking.current import Current
from kvatlas.tracking.fingerprint import Explanation


@dataclass(frozen=True)
class Job:
    """A job behind the cells.

    Args:
        outputs: its files; the first has its code record. inputs: the files of a run that it reads.
        step, subject: how `kvatlas.tracking.dependencies` calls its code; empty where cells decide that it reruns.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    step: str = ""
    subject: str = ""

    def code(self, current: Current) -> Explanation:
        """Return what its fingerprint is made of."""
        if self.step == "embed":
            return current.embed_explanation()
        return dependencies.step_code(self.step, self.subject, current.grid.config) if self.step else {}


def jobs(grid: Grid) -> list[Job]:
    """Return the jobs behind the cells, each after those whose files it reads."""
    paths, studies = grid.paths, tuple(grid.config["studies"])
    listed = [Job((paths.verified(*key),), tuple(cell.output for cell in grid.group(*key))) for key in grid.groups()]
    for model in grid.embedded_models():
        read = [path for study in grid.embedded_studies() for path in grid.verified(study, model)]
        listed.append(Job((paths.embeddings(model),), tuple(read), "embed"))
    for study in studies:
        read = [*grid.verified(study), *(paths.embeddings(model) for model in grid.embedded_models(study))]
        listed.append(Job((paths.table(study),), tuple(read), "aggregate", study))
    data = report_data(grid)
    results = (data[0],)
    listed.append(Job(data, (*map(paths.table, studies), *grid.verified()), "results"))
    listed += [Job((paths.figure(name),), data, "figure", name) for name in figure_names()]
    listed.append(Job(pages(grid), data, "pages"))
    listed.append(Job((f"{paths.report}/{EXPLORER}",), data, "explorer"))
    if grid.config.get("highlights", False):
        listed.append(Job((paths.highlights(),), results, "highlights"))
    return listed


def pages(grid: Grid) -> tuple[str, ...]:
    """Return the pages of the report, `README.md` first."""
    return tuple(f"{grid.paths.report}/{name}" for name in (*PAGES, *unfold.study_pages(grid.config)))


def report_data(grid: Grid) -> tuple[str, ...]:
    """Return the data files of the report, `results.json` first."""
    return tuple(f"{grid.paths.report}/{name}" for name in (*DATA_FILES, *unfold.data_files(grid.config)))


def files(grid: Grid) -> list[str]:
    """Return every file that a finished run has, from prompts to pages; pictures stand in the stamps of their figures."""
    cells = [cell.output for cell in grid.cells.values() if cell.kind == PROMPTS or cell.arm]
    return cells + [path for job in jobs(grid) for path in job.outputs]


def damaged(grid: Grid) -> list[str]:
    """Return the files that are there and are known not to be what their job wrote."""
    sums = verified_sums(grid, grid.groups())
    cells = [cell for cell in grid.cells.values() if cell.kind == PROMPTS or cell.arm]
    found = [cell.output for cell in cells if Path(cell.output).is_file() and is_damaged(cell, sums)]
    made = [path for job in jobs(grid) for path in job.outputs if Path(path).is_file()]
    return found + [path for path in made if is_spoiled(path)]


def of_the_future(grid: Grid, now: float) -> list[str]:
    """Return the files of the run that are younger than `now`, in seconds as the system's clock counts them.

    The clock jumped back since they were written. Snakemake refuses what is made of them until it has caught up.
    """
    folders = (Path(grid.paths.results), Path(grid.paths.report))
    made = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return sorted(path.as_posix() for path in made if path.stat().st_mtime > now)


def is_damaged(cell: Cell, sums: dict[str, str]) -> bool:
    """Return whether a cell or the sidecar of its timing changed; without a record, the sums of verified groups tell."""
    if not (checksums.is_intact(cell.output) and checksums.is_intact(timing_of(cell.output))):
        return True
    known = sums.get(cell.output)
    return known is not None and not checksums.is_recorded(cell.output) and known != checksum(cell.output)


def is_spoiled(path: str) -> bool:
    """Return whether a file behind the cells changed, or one of the pictures that it lists is lost or changed.

    A file without a record, as a report that came with a clone, is taken for what it is.
    """
    if not checksums.is_intact(path):
        return True
    return checksums.is_recorded(path) and not all(
        Path(name).is_file() and checksums.is_intact(name) for name in pictures(path)
    )


def pictures(stamp: str) -> list[str]:
    """Return the pictures that a figure's stamp lists, in the report and in the folder beside it; of other files none."""
    is_stamp = Path(stamp).parent.name == "figures" and stamp.endswith(".json")
    names = _read(stamp).get("files", []) if is_stamp else []
    folder = Path(stamp).with_suffix("")
    return [*names, *(folder.joinpath(Path(name).name).as_posix() for name in names)]


def verified_sums(grid: Grid, keys: Iterable[GroupKey]) -> dict[str, str]:
    """Return the checksums that cells had when their groups were verified."""
    sums: dict[str, str] = {}
    for key in keys:
        sums |= _read(grid.paths.verified(*key)).get("cells", {})
    return sums


def require_cells(grid: Grid, cells: Sequence[Cell]) -> None:
    """Remove cells that are not what was verified, and raise KvatlasError that names them."""
    sums = verified_sums(grid, {cell.group_key for cell in cells})
    if broken := [cell.output for cell in cells if Path(cell.output).is_file() and is_damaged(cell, sums)]:
        checksums.discard(broken)


def _read(path: str) -> dict[str, Any]:
    """A record of the run; empty where it is lost or broken, which is found by its own checksum."""
    try:
        record = read_json(path)
    except KvatlasError:
        return {}
    return record if isinstance(record, dict) else {}
