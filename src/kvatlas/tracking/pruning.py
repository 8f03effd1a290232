"""Files of a run that its configuration no longer has: cells of removed arms, and prompts, prefills and records of removed
groups. Knows paths and the grid; deletes only what it is asked to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvatlas.grid import unfold
from kvatlas.grid.cells import Grid
from kvatlas.grid.studies import all_studies
from kvatlas.paths import checksum_record, code_record, tensors_of, timing_of

_FOLDERS = ("cells", "prompts", "prefill", "verified", "tables")
_SIDECARS = (".timing.json", ".safetensors", ".checksum.json")


def left_over(grid: Grid) -> list[Path]:
    """Return the files of the run's folders that no cell, group or study of the grid has, without their sidecars."""
    wanted = {Path(path) for path in _wanted(grid)}
    found = [
        path
        for folder in _FOLDERS
        for path in sorted(Path(grid.paths.results, folder).rglob("*"))
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith(_SIDECARS) and path not in wanted
    ]
    pages = set(unfold.study_pages(grid.config))
    kept = (Path(grid.paths.report, record.page) for record in all_studies().values() if record.page not in pages)
    return found + [path for path in kept if path.is_file()]


def _wanted(grid: Grid) -> Iterator[str]:
    yield from grid.cells
    yield from grid.verified()
    yield from (grid.paths.table(study) for study in grid.config["studies"])


def remove(path: Path) -> None:
    """Delete a file that is left over with its sidecars and records, and the folders that are empty then."""
    beside = [timing_of(path), tensors_of(path), tensors_of(path).with_suffix(".checksum.json")]
    for each in (path, *beside):
        for file in (each, code_record(each), checksum_record(each)):
            if file is not None and file.is_file():
                file.unlink()
                _remove_empty(file.parent)


def _remove_empty(folder: Path) -> None:
    """Delete a folder and those above it while they are empty; a run's own folder stays."""
    while len(folder.parts) > 2 and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
