"""Trials of the passkey study to its section of results.json: the needle study's tables, and one row per haystack.

Repeated noise has near-duplicate keys, which flatters every method that looks at key geometry; `by_haystack` keeps the
haystacks apart. Knows the trial schema; knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.analysis.studies import needle
from kvatlas.analysis.studies.clusters import Trial
from kvatlas.analysis.studies.validity import NO_CONTEXT


def aggregate(trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section of `needle.aggregate` with `by_haystack`: every arm's row in each haystack by itself."""
    section = needle.aggregate(trials, options)
    inside = [trial for trial in trials if trial["mode"] != NO_CONTEXT]
    section["by_haystack"] = [
        {"haystack": haystack} | row
        for haystack in sorted({trial["haystack"] for trial in inside})
        for row in needle.describe([trial for trial in inside if trial["haystack"] == haystack])["rows"]
    ]
    return section
