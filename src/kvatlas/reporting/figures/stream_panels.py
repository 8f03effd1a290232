"""What the figures of the online and attention-loss studies share: their rows, and how protection is told.

It must not know what a single figure shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvatlas.reporting import labels

Row = Mapping[str, Any]


class StreamPanel(NamedTuple):
    """The arms of one model at one budget under one protection, with the full cache and sink + recent beside them."""

    model: str
    budget: str
    rows: list[Row]
    full: Row
    baseline: Row | None

    @property
    def title(self) -> str:
        """Name of the panel."""
        return f"{labels.budget_label(self.budget)}, {labels.protected_label(self.rows[0])}"


def section(results: Mapping[str, Any], study: str, name: str) -> list[Row]:
    """Return the rows of one section of a study, empty when it was not run."""
    rows: list[Row] = (results.get("studies", {}).get(study) or {}).get(name) or []
    return rows


def split(rows: Sequence[Row]) -> list[StreamPanel]:
    """Group the unquantized arms of the online study by model, budget and what is protected, the tightest budget first."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    plain = [row for row in rows if row["quantizer"] == "none"]
    for row in plain:
        if row["method"] not in ("full", "sink_recent"):
            groups.setdefault((row["model"], row["budget"], labels.protected_label(row)), []).append(row)
    panels = []
    for model, budget, _ in sorted(
        groups, key=lambda key: (key[0], _size(key[1]), key[2] != "nothing protected", key[2])
    ):
        members = sorted(groups[model, budget, _], key=labels.arm_key)
        full = next(row for row in plain if (row["model"], row["method"]) == (model, "full"))
        twins = [r for r in plain if (r["model"], r["method"], r["budget"]) == (model, "sink_recent", budget)]
        panels.append(StreamPanel(model, budget, members, full, twins[0] if twins else None))
    return panels


def _size(budget: str) -> tuple[int, float]:
    kind, number = labels.budget_key(budget)
    return kind, -number


def count_note(row: Row) -> str:
    """Tell the sample size: predictions and blocks of neighbouring tokens."""
    return f"n = {row['n']:,} predictions in {row['n_clusters']} clusters (64 tokens)"
