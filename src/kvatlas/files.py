"""Reading and writing the pipeline's files: atomic, checksummed, deterministic.

A file appears under its final name only when it is complete: a killed run leaves at most a `.part` file behind.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from kvatlas.errors import KvatlasError


@contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path` and rename it to `path` when the block ends without an error.

    Raises KvatlasError when the disk is full; the temporary file is removed on every error.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        yield part
        os.replace(part, target)
    except Exception as error:
        if is_disk_full(error):
            raise KvatlasError(
                f"{target}: no space left on the disk; free some and run the same command again"
            ) from error
        raise
    finally:
        part.unlink(missing_ok=True)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error means that the disk is full; safetensors reports the system's error only as text."""
    return getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "(os error 28)" in str(error)


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
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise KvatlasError(f"{path}: not valid JSON ({error}); delete it and run the same command again") from error


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
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
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
