"""What differs in how two reports were made: configuration, claims, models, code, packages, hardware.

Lists every key; does not judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvatlas.analysis.agreement.report import Report

KINDS = ("config", "claim_file", "models", "code", "packages", "hardware")
"""The parts that are compared: keys of config.json, and `claim_file` of results.json."""
ABSENT = "-"
_NAMES = ("run", "title")  # names of a run, which no number depends on

Difference = dict[str, str]


def differences(first: Report, second: Report) -> dict[str, list[Difference]]:
    """Return kind -> the keys whose values differ, each with both values as text (`-` where a report has none)."""
    parts = [
        {kind: report.results.get(kind) or report.config.get(kind) for kind in KINDS} for report in (first, second)
    ]
    return {kind: _changed(*(dict(_leaves(part[kind])) for part in parts)) for kind in KINDS}


def _changed(first: Mapping[str, str], second: Mapping[str, str]) -> list[Difference]:
    return [
        {"key": key, "first": first.get(key, ABSENT), "second": second.get(key, ABSENT)}
        for key in sorted({*first, *second} - {*_NAMES})
        if first.get(key) != second.get(key)
    ]


def _leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of nested mappings and lists, keys joined by dots."""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else None
    if pairs is not None:
        for key, item in pairs:
            yield from _leaves(item, f"{prefix}.{key}" if prefix else str(key))
    elif value is not None:
        yield prefix, str(value)
