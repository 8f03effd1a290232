"""The files of a cell: a header and one trial per line, all deterministic, and a sidecar for what may differ.

This is the one module that knows the format. It imports neither torch nor transformers, because analyses read cells too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import read_jsonl, write_json, write_jsonl
from kvatlas.paths import timing_of

Trial = dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What a cell has measured.

    Args:
        trials: one mapping of plain numbers and texts per trial, equal in two runs of the cell.
        timing: durations in seconds, the device, and whatever else may differ between two runs.
    """

    trials: Sequence[Mapping[str, Any]]
    timing: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Header:
    """The first line of a cell file.

    Args:
        spec: what was run. fingerprint: the code that ran it; empty where a cell ran without the workflow.
        accepted_from: the fingerprint that the trials were made by, where an edit of the code was accepted since.
    """

    spec: dict[str, Any]
    fingerprint: str
    accepted_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class CellFile(Header):
    """A cell file: its header and its trials, at least one."""

    trials: list[Trial]


def write(
    output: Path | str,
    spec: Mapping[str, Any],
    fingerprint: str,
    trials: Sequence[Mapping[str, Any]],
    *,
    accepted_from: str | None = None,
) -> None:
    """Write a cell file, atomically and with sorted keys."""
    header: dict[str, Any] = {"cell": dict(spec), "fingerprint": fingerprint}
    if accepted_from is not None:
        header["accepted_from"] = accepted_from
    write_jsonl(output, [header, *trials])


def read(path: Path | str) -> CellFile:
    """Read a cell file.

    Raises KvatlasError that names the file when it is missing, truncated or broken, or has no header or no trials.
    """
    first, *trials = read_jsonl(path) or [None]
    header = _header(path, first)
    if not trials:
        raise KvatlasError(f"{path}: holds no trials; delete the cell and run the same command again")
    return CellFile(**vars(header), trials=trials)


def trial_lines(path: Path | str) -> list[bytes]:
    """Return the lines of a cell file that hold trials, as they are stored."""
    return Path(path).read_bytes().splitlines(keepends=True)[1:]


def read_header(path: Path | str) -> Header:
    """Read the first line of a cell file. Raises KvatlasError when the file is missing or has no header."""
    try:
        with Path(path).open(encoding="utf-8") as stream:
            first = json.loads(stream.readline())
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such cell; build it with snakemake") from error
    except (ValueError, RecursionError) as error:
        raise KvatlasError(f"{path}: broken cell; delete it and run the same command again") from error
    return _header(path, first)


def _header(path: Path | str, first: Any) -> Header:
    is_header = isinstance(first, dict) and isinstance(first.get("cell"), dict)
    if not (is_header and isinstance(first.get("fingerprint"), str)):
        raise KvatlasError(
            f"{path}: its first line is not a cell header; delete the cell and run the same command again"
        )
    return Header(spec=first["cell"], fingerprint=first["fingerprint"], accepted_from=first.get("accepted_from"))


def write_timing(output: Path | str, timing: Mapping[str, Any]) -> None:
    """Write the sidecar of the cell file `output`."""
    write_json(timing_of(output), {key: _rounded(value) for key, value in timing.items()})


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) and value > 1e-3 else value
