"""What the files of a `path` source hold: one digest, so that an edit in place counts like another source.

Size, times and inode of a file are a hint: while they are the same, a digest from an earlier look stands. The truth is the
checksum of its bytes, formed anew where the hint changed, also when an edit put the file's own time back. Knows no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import xxhash

from kvatlas.errors import KvatlasError
from kvatlas.files import checksum, read_json, write_json
from kvatlas.lm.folders import model_files

MEMORY = Path("resources/.path_content.json")
"""File -> [hint, checksum], of files that were read before."""
ABSENT = "absent"


def digest(entry: Mapping[str, Any]) -> str:
    """Return a digest of the files that an entry of source `path` names; `ABSENT` where there are none yet.

    A folder counts with its model files, a file by itself.
    """
    source = Path(entry["path"]).expanduser().resolve()
    if source.is_dir():
        paths: Iterable[Path] = (source / name for name in model_files(source))
    else:
        paths = [source] if source.is_file() else []
    known = _remembered()
    sums: dict[str, Any] = {}
    for path in paths:
        hint = _hint(path)
        seen = known.get(str(path))
        sums[str(path)] = seen if isinstance(seen, list) and seen[:1] == [hint] else [hint, checksum(path)]
    if any(known.get(path) != value for path, value in sums.items()):
        with suppress(OSError):  # a folder that is not ours to write: the files are read again next time
            write_json(MEMORY, known | sums)
    lines = [f"{Path(path).relative_to(source)}={sums[path][1]}" for path in sorted(sums)]
    return str(xxhash.xxh3_128("\n".join(lines).encode()).hexdigest()) if lines else ABSENT


def _hint(path: Path) -> list[int]:
    """Size and inode, and both times: that of the status changes with every write, and nobody can set it back."""
    status = path.stat()
    return [status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns]


def _remembered() -> dict[str, Any]:
    try:
        known = read_json(MEMORY)
    except KvatlasError:
        return {}
    return known if isinstance(known, dict) else {}
