"""Is a file of a run still what its job wrote? A checksum recorded apart from the file answers.

A truncated or edited cell may still be valid JSON; without this it would be taken for the cell itself. A broken
file is removed and named, so that the same command makes it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kvatlas.errors import KvatlasError
from kvatlas.files import checksum, read_json, write_json
from kvatlas.paths import checksum_record


def record(*outputs: Path | str) -> None:
    """Keep the checksums of finished outputs; files outside a run have none."""
    for output in outputs:
        recorded = checksum_record(output)
        if recorded is not None:
            write_json(recorded, _measure(Path(output)))


def is_recorded(path: Path | str) -> bool:
    """Return whether the checksum of a file was kept; True outside a run, where none is."""
    recorded = checksum_record(path)
    return recorded is None or recorded.is_file()


def is_intact(path: Path | str) -> bool:
    """Return whether a file is what was recorded; True where nothing was, False where the file is gone."""
    recorded = checksum_record(path)
    if recorded is None or not recorded.is_file():
        return True
    try:
        return Path(path).is_file() and bool(read_json(recorded) == _measure(Path(path)))
    except KvatlasError:
        # The record itself is broken; whoever reads the file finds its faults.
        recorded.unlink(missing_ok=True)
        return True


def require(paths: Iterable[Path | str]) -> None:
    """Remove what is not as it was written, and raise KvatlasError that names it; nothing to do for intact files."""
    broken = [str(path) for path in paths if not is_intact(path)]
    if broken:
        discard(broken)


def discard(broken: Iterable[Path | str]) -> None:
    """Remove broken files of a run, and raise KvatlasError that names them."""
    names = sorted(map(str, broken))
    for name in names:
        Path(name).unlink(missing_ok=True)
    raise KvatlasError(
        f"{', '.join(names)}: corrupt, or edited after it was written; it was removed, run the same command again"
    )


def _measure(path: Path) -> dict[str, int | str]:
    return {"bytes": path.stat().st_size, "checksum": checksum(path)}
