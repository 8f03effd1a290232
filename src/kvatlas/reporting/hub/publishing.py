"""Publishing a report folder as a dataset repository on the Hugging Face Hub, in one commit or none.

The card is checked before anything is sent. What the repository already has is not sent again, and where nothing
changed there is no commit. Logins are read by the Hub's own library and never shown. Knows nothing of how a report is
made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyarrow import ArrowInvalid, parquet

from kvatlas.errors import KvatlasError
from kvatlas.files import checksum, read_json
from kvatlas.grid.studies import all_studies
from kvatlas.lm.hub_answers import read_login
from kvatlas.paths import COMPARISON, DATA_FILES, EXPLORER, MEASUREMENTS, PAGES, STREAMS, figure_names
from kvatlas.reporting.hub import cards
from kvatlas.reporting.hub.failures import PUBLISH, hub_errors

CARD = "README.md"
MESSAGE = "Update the report"
# Files that a former report may have left in the repository; everything else there is somebody else's.
_FIGURES = "figures"
_OURS = (f"{_FIGURES}/",)
LARGEST = 2**30
"""Bytes of the largest file that is published: far more than a run's trials take."""
_DATA = ".parquet"


@dataclass(frozen=True)
class ReportFile:
    """One file of the report: its path in the repository and on disk, and its bytes."""

    path: str
    source: Path
    size: int


def collect(folder: Path) -> list[ReportFile]:
    """Check the report in `folder` and return its files by path: those that a run writes, and nothing else.

    Raises KvatlasError when there is no report or one of its files is missing, when a file is a link or a data file is
    broken, when the card is not valid, or when a file is too large.
    """
    if not (folder / CARD).is_file():
        raise KvatlasError(f"{folder}: there is no {CARD} to publish; build the report with snakemake first")
    missing = [name for name in (*DATA_FILES, *PAGES, *_study_pages(folder), EXPLORER) if not (folder / name).is_file()]
    if missing:
        raise KvatlasError(f"{folder}: {', '.join(missing)} is missing; build the report again with snakemake")
    sources = {
        path: folder / path for path in _known_files() if (folder / path).is_file() or (folder / path).is_symlink()
    }
    for source in (folder, folder / _FIGURES, *sources.values()):
        if source.is_symlink():
            raise KvatlasError(f"{source}: a link, which may lead out of the report; put the file itself there")
    files = [ReportFile(path, source, source.stat().st_size) for path, source in sorted(sources.items())]
    for file in files:
        if file.size > LARGEST:
            raise KvatlasError(
                f"{file.source}: {_size(file.size)}, more than the {_size(LARGEST)} that a file may have; is it of this run?"
            )
    rows = sum(_rows(file.source) for file in files if file.path.endswith(_DATA))
    cards.validate(_card(folder / CARD), folder, rows=rows)
    return files


def _card(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise KvatlasError(f"{path}: not UTF-8; build the report again with snakemake") from error


def strays(folder: Path) -> list[str]:
    """Return what else lies in the folder of a report, and is not published: the first names below it, sorted."""
    known = {*_known_files(), _FIGURES}
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
    return sorted(name for name in names if name not in known)


def _known_files() -> list[str]:
    """The files that a report may have, as paths in its folder."""
    figures = (f"{_FIGURES}/{name}{suffix}" for name in figure_names() for suffix in (".png", ".svg"))
    studies = (record.page for record in all_studies().values())
    return [*DATA_FILES, STREAMS, MEASUREMENTS, *PAGES, *studies, EXPLORER, *COMPARISON, *figures]


def _study_pages(folder: Path) -> list[str]:
    """The pages of the studies that a report's results hold."""
    results = folder / "results.json"
    studies = read_json(results).get("studies", {}) if results.is_file() else {}
    return [record.page for name, record in all_studies().items() if name in studies]


def _rows(path: Path) -> int:
    try:
        return int(parquet.read_metadata(path).num_rows)
    except (ArrowInvalid, OSError) as error:
        raise KvatlasError(f"{path}: not a readable parquet file; build the report again with snakemake") from error


def describe(files: Sequence[ReportFile]) -> str:
    """Return the files with their sizes, one a line, and the total."""
    lines = [f"{_size(file.size):>10}  {file.path}" for file in files]
    return "\n".join([*lines, f"{_size(sum(file.size for file in files)):>10}  in {len(files)} files"])


def _size(size: int) -> str:
    for unit, scale in (("MiB", 2**20), ("KiB", 2**10)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size} B"


def publish(files: Sequence[ReportFile], repo_id: str, *, private: bool = False) -> str:
    """Bring the dataset repository `repo_id` up to `files`, and return what was done in one line.

    A repository that does not exist is made, private with `private`. Files of a former report that are gone are
    removed: figures, and parquet files beside the card. Raises KvatlasError, one line, for every failure of the Hub;
    nothing is half published then, because everything is one commit.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi

    if repo_id.count("/") != 1:
        raise KvatlasError(f"publish.repo_id: '{repo_id}' names no user or organization; write NAME/REPOSITORY")
    if read_login(PUBLISH) is None:
        raise KvatlasError("publish: no login found; run `hf auth login` once, or set HF_TOKEN to a token that writes")
    with hub_errors(PUBLISH, repo_id):
        api = HfApi()
        head = _open_repository(api, repo_id, private)
        remote = _remote_files(api, repo_id, head)
        changed = [file for file in files if not _is_same(file, remote.get(file.path))]
        stale = _stale(remote, files)
        if not changed and not stale:
            return f"{repo_id}: nothing changed, no commit was made"
        operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
            *(CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=file.source) for file in changed),
            *(CommitOperationDelete(path_in_repo=path) for path in stale),
        ]
        commit = api.create_commit(repo_id, operations, commit_message=MESSAGE, repo_type="dataset", parent_commit=head)
    size = _size(sum(file.size for file in changed))
    removed = f", {len(stale)} removed" if stale else ""
    return f"{repo_id}: {len(changed)} files sent ({size}){removed}, in one commit: {commit.commit_url}"


def _open_repository(api: Any, repo_id: str, private: bool) -> str | None:
    """Return the repository's newest commit, making the repository where there is none."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = api.dataset_info(repo_id)
    except RepositoryNotFoundError:
        api.create_repo(repo_id, repo_type="dataset", private=private or None, exist_ok=True)
        info = api.dataset_info(repo_id)
    if private and not info.private:
        raise KvatlasError(
            f"publish.private: {repo_id} exists and is public; make it private in its settings, or choose another name"
        )
    head: str | None = info.sha
    return head


def _remote_files(api: Any, repo_id: str, revision: str | None) -> dict[str, Any]:
    entries = api.list_repo_tree(repo_id, recursive=True, repo_type="dataset", revision=revision)
    return {entry.path: entry for entry in entries if hasattr(entry, "blob_id")}


def _is_same(file: ReportFile, remote: Any) -> bool:
    """Whether the repository has these very bytes: by sha256 for large files, by git's object id for the others."""
    if remote is None or remote.size != file.size:
        return False
    if remote.lfs is not None:
        return bool(remote.lfs.sha256 == checksum(file.source, hashlib.sha256))
    content = file.source.read_bytes()
    return bool(remote.blob_id == hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest())


def _stale(remote: Mapping[str, Any], files: Sequence[ReportFile]) -> list[str]:
    """The files of a former report that this one no longer has."""
    kept = {file.path for file in files}
    ours = [path for path in remote if path.startswith(_OURS) or ("/" not in path and path.endswith(_DATA))]
    return sorted(set(ours) - kept)
