"""What the figures of the needle study share: its rows, its panels, and their sample size.

It must not know what a single figure shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes

from kvatlas.analysis.studies.validity import is_repeat
from kvatlas.reporting import labels
from kvatlas.reporting.figures.layout import note_above
from kvatlas.reporting.study_rows import Record, rows_of

_MODE_ORDER = {mode: rank for rank, mode in enumerate(labels.MODE_LABELS)}


class Panel(NamedTuple):
    """The rows of one model and question mode."""

    model: str
    mode: str
    rows: list[Record]

    @property
    def title(self) -> str:
        """Name of the panel."""
        return f"{labels.model_label(self.model)}, {labels.mode_label(self.mode)}"


def needle(results: Record, table: str = "rows") -> list[Record]:
    """Return the rows of one table of the needle study, empty when it was not run.

    Questions without their context and repeats of the full cache are left out: they are no arms to compare.
    """
    repeats = {(row["model"], row["mode"], row["arm"]) for row in rows_of(results, "needle") if is_repeat(row)}
    return [
        row
        for row in rows_of(results, "needle", table)
        if row.get("mode") != "no_context" and (row["model"], row["mode"], row.get("arm")) not in repeats
    ]


def split(rows: Iterable[Record]) -> list[Panel]:
    """Group rows into panels by model, then question mode, keeping the rows' order."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for row in rows:
        groups.setdefault((str(row["model"]), str(row["mode"])), []).append(row)
    order = sorted(groups, key=lambda key: (key[0], _MODE_ORDER.get(key[1], len(_MODE_ORDER)), key[1]))
    return [Panel(model, mode, groups[model, mode]) for model, mode in order]


def by_method(rows: Iterable[Record]) -> dict[str, list[Record]]:
    """Group rows by method in the published order, each method's rows from the largest cache to the
    smallest.
    """
    groups: dict[str, list[Record]] = {}
    for row in sorted(rows, key=labels.arm_key):
        groups.setdefault(str(row["method"]), []).append(row)
    return dict(sorted(groups.items(), key=lambda item: labels.method_key(item[0])))


def count_note(rows: Sequence[Record]) -> str:
    """Spell the sample size of a panel: trials and clusters per arm."""
    trials = labels.spread(sorted({int(row["n"]) for row in rows if labels.known(row.get("n"))}))
    clusters = labels.spread(sorted({int(row["n_clusters"]) for row in rows if labels.known(row.get("n_clusters"))}))
    return f"n = {trials} trials in {clusters} clusters per arm"


def resident_mib(row: Record) -> float | None:
    """Resident MiB per prompt of the cache as it would be deployed: bf16 where it is not quantized."""
    value = row.get("resident_bf16_mib")
    value = row.get("kv_mib") if value is None else value
    return float(value) if isinstance(value, int | float) and value > 0 else None


def arm_names(results: Record) -> dict[str, Record]:
    """Map an arm id to any row that carries its method, budget and quantizer."""
    return {str(row["arm"]): row for row in needle(results, "rows")}


def titled(axes: Axes, panel: Panel) -> None:
    """Write the panel's title and its sample size above the axes."""
    axes.set_title(panel.title, pad=13)
    note_above(axes, count_note(panel.rows))


def frontier(points: Sequence[tuple[float, float]], *, larger_is_better: bool) -> list[tuple[float, float]]:
    """Return the non-dominated (size, value) points by growing size: no other point is at most as large
    and better.
    """
    sign = 1.0 if larger_is_better else -1.0
    staircase: list[tuple[float, float]] = []
    for size, value in sorted(set(points), key=lambda point: (point[0], -sign * point[1])):
        if not staircase or sign * value > sign * staircase[-1][1]:
            staircase.append((size, value))
    return staircase
