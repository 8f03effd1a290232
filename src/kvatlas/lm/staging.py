"""Building a folder or file beside its final place: locked, and renamed only when it is complete.

Knows nothing of models, texts or sources.
"""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvatlas.errors import KvatlasError
from kvatlas.files import is_disk_full


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of `target`, so that two processes that want the same one build it once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f".{target.name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def work_folder(target: Path, label: str) -> Iterator[Path]:
    """Yield an empty folder beside `target` (same file system) and remove it at the end, whatever happens.

    What a killed process left there is removed first; call it under `locked(target)`.
    Raises KvatlasError, starting with `label`, when the disk is full.
    """
    work = target.with_name(f".{target.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    try:
        work.mkdir(parents=True)
        yield work
    except Exception as error:
        if is_disk_full(error):
            raise KvatlasError(
                f"{label}: no space left on the disk for {target}; free some and run the same command again"
            ) from error
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def replace_folder(source: Path, target: Path) -> None:
    """Rename the complete folder `source` to `target`, in place of whatever incomplete folder is there."""
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    source.rename(target)
