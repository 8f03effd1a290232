"""Reading and writing the pipeline's files: atomic, checksummed, deterministic.

A file appears under its final name only when it is complete: a killed run leaves at most a `.part` file behind.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import xxhash

from kvatlas.errors import KvatlasError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_REASONS = {
    **dict.fromkeys(_FULL, "no space left on the disk; free some and run the same command again"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "no right to it; run as the user whose it is, or change its rights"),
    errno.EROFS: "the file system is read-only; run the same command in a folder that can be written",
    errno.EFBIG: "larger than a file may be here; raise the limit (ulimit -f) and run the same command again",
    errno.ENAMETOOLONG: "the name is too long for this file system; use shorter names or another folder",
    **dict.fromkeys(
        (errno.EISDIR, errno.ENOTDIR, errno.EEXIST),
        "a file is where a folder must be, or a folder where a file must be; move it away",
    ),
}


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path` and rename it to `path` when the block ends without an error.

    Raises KvatlasError when the disk is full or the file may not be written; the temporary file is removed on every error.
    """
    target = Path(path)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, target)
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise KvatlasError(
            f"{target}: a text in it has half a character (U+{code:04X}), which no file can hold"
        ) from error
    except Exception as error:
        reason = system_reason(error)
        if reason is None:
            raise
        raise KvatlasError(f"{target}: {reason}") from error
    finally:
        with suppress(OSError):
            part.unlink()


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that the disk is full."""
    return _system_number(error) in _FULL


def system_reason(error: BaseException) -> str | None:
    """Say in words for a user why the system refused a file, and the way out; None for any other error."""
    return _REASONS.get(_system_number(error))


def half_a_character(path: Path | str, error: UnicodeEncodeError) -> str:
    """Say which half of a surrogate pair keeps a file from being written."""
    code = ord(error.object[error.start])
    return f"{path}: a text in it has half a character (U+{code:04X}), which no file can hold"


def _system_number(error: BaseException) -> int:
    """The number of a system's error, 0 for others; safetensors reports it only as text."""
    number = getattr(error, "errno", None)
    said = re.search(r"\(os error (\d+)\)", str(error)) if number is None else None
    return int(said[1]) if said else number if isinstance(number, int) else 0


def write_text(path: Path | str, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as part:
        part.write_text(text, encoding="utf-8")


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Render `value` as JSON with sorted keys; NaN and infinity are refused, because no reader agrees on them.

    Raises KvatlasError that names the place of the first one.
    """
    try:
        return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=indent)
    except ValueError as error:
        if "Out of range" not in str(error):
            raise
        why = "a number before it overflowed, or there was nothing to measure"
        raise KvatlasError(f"{next(_not_finite(value))} is no finite number; {why}") from error


def _not_finite(value: Any, place: str = "") -> Iterator[str]:
    """Yield the places of numbers that are not finite: `ref_nlls[3]`."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{place or 'the value'} ({value})"
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _not_finite(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _not_finite(item, f"{place}[{index}]")


def write_json(path: Path | str, value: Any) -> None:
    """Write `value` as indented JSON with sorted keys, atomically. Raises KvatlasError for a number that is not finite."""
    with _named(path):
        text = dump_json(value, indent=1)
    write_text(path, text + "\n")


@contextmanager
def _named(path: Path | str) -> Iterator[None]:
    """Let the errors of the block begin with a file's name."""
    try:
        yield
    except KvatlasError as error:
        raise KvatlasError(f"{path}: {error}") from error


def read_json(path: Path | str) -> Any:
    """Read one JSON file. Raises KvatlasError that names the file when it is missing or broken."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such file; build it with snakemake") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise KvatlasError(f"{path}: not valid JSON ({error}); delete it and run the same command again") from error


def _unreadable(path: Path | str, error: OSError) -> KvatlasError:
    return KvatlasError(f"{path}: {system_reason(error) or f'cannot be read ({error.strerror})'}")


def write_jsonl(path: Path | str, rows: Iterable[Any]) -> None:
    """Write one JSON value per line, atomically. Raises KvatlasError for a number that is not finite."""
    with atomic_path(path) as part, part.open("w", encoding="utf-8") as stream:
        for number, row in enumerate(rows, start=1):
            with _named(f"{path}:{number}"):
                line = dump_json(row)
            stream.write(line + "\n")


def read_jsonl(path: Path | str) -> list[Any]:
    """Read one JSON value per line. Raises KvatlasError that names the file and line when it is truncated or broken."""
    rows: list[Any] = []
    try:
        with Path(path).open(encoding="utf-8") as stream:
            for number, line in enumerate(stream, start=1):
                if not line.endswith("\n"):
                    raise KvatlasError(f"{path}:{number}: truncated; delete the file and run the same command again")
                rows.append(json.loads(line))
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such file; build it with snakemake") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise KvatlasError(
            f"{path}:{len(rows) + 1}: not valid JSON; delete the file and run the same command again"
        ) from error
    return rows


def checksum(path: Path | str, algorithm: Callable[[], Any] = xxhash.xxh3_128) -> str:
    """Hash a file in chunks; the default (XXH3, 128 bits) finds corruption at disk speed, sha256 authenticates."""
    digest = algorithm()
    with Path(path).open("rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return str(digest.hexdigest())
