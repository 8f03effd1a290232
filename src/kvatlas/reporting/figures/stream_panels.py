"""What the figures of the online study share: its panels, their baseline, and their sample size.

It must not know what a single figure shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvatlas.analysis.studies.arm_twins import baseline_of
from kvatlas.reporting import labels
from kvatlas.reporting.study_rows import Record


class StreamPanel(NamedTuple):
    """The arms of one model at one budget under one protection, with the full cache and sink + recent beside them."""

    model: str
    budget: str
    rows: list[Record]
    full: Record
    baseline: Record | None


def split(rows: Sequence[Record]) -> list[StreamPanel]:
    """Group the unquantized arms of the online study by model, budget and what is protected, the tightest budget first."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    plain = [row for row in rows if row["quantizer"] == "none"]
    for row in plain:
        if row["method"] not in ("full", "sink_recent"):
            groups.setdefault((row["model"], row["budget"], labels.protected_label(row)), []).append(row)
    panels = []
    for key in sorted(groups, key=lambda key: (key[0], _size(key[1]), key[2] != "nothing protected", key[2])):
        model, budget, _ = key
        members = sorted(groups[key], key=labels.arm_key)
        full = next(row for row in plain if (row["model"], row["method"]) == (model, "full"))
        # The arm that the tables compare with: of the panel's protection where there is one.
        baseline = baseline_of(members[0], {row["arm"]: row for row in plain if row["model"] == model})
        panels.append(StreamPanel(model, budget, members, full, baseline))
    return panels


def _size(budget: str) -> tuple[int, float]:
    kind, number = labels.budget_key(budget)
    return kind, -number


def count_note(row: Record) -> str:
    """Spell the sample size: predictions and blocks of neighbouring tokens."""
    return f"n = {row['n']:,} predictions in {row['n_clusters']} clusters (64 tokens)"
