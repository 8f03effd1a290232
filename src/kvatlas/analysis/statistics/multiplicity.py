"""Multiplicity: p-values adjusted for the number of tests that were made together, a family of them at a time.

Knows p-values and rows that have one; knows no trials and no arms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

ALPHA = 0.05
"""The level of every test and of the intervals that go with it, after adjustment within a family."""
PRIMARY = "primary"
"""The family that a study declares beforehand has Holm's correction, every other one Benjamini and Hochberg's."""

Row = MutableMapping[str, Any]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's (1979) adjusted p-values, in the given order."""
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))) if p.size else p
    adjusted = np.empty_like(p)
    adjusted[order] = steps
    return [float(value) for value in adjusted]


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Return Benjamini and Hochberg's (1995) adjusted p-values, in the given order."""
    if not p_values:
        return []
    return [float(value) for value in stats.false_discovery_control(list(p_values), method="bh")]


def adjusted(p_values: Sequence[float], family: str) -> list[float]:
    """Return the p-values of one family of tests, adjusted as the family's name says."""
    return holm(p_values) if family == PRIMARY else benjamini_hochberg(p_values)


def adjust(rows: Iterable[Row], group: Callable[[Row], Hashable] = lambda row: None) -> None:
    """Add `p_holm` to the rows of the primary family and `p_bh` to the others (the other key is None there).

    Rows have `p` and `family`; those of one family for which `group` returns the same were tested together.
    """
    families: dict[tuple[str, Hashable], list[Row]] = {}
    for row in rows:
        row.update(p_holm=None, p_bh=None)
        families.setdefault((row["family"], group(row)), []).append(row)
    for (family, _), members in families.items():
        p_values = adjusted([row["p"] for row in members], family)
        for row, value in zip(members, p_values, strict=True):
            row["p_holm" if family == PRIMARY else "p_bh"] = value
