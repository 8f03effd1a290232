"""Reading results.json: the rows of a study's tables, its models and question modes, and the speed of its arms.

It must not know how a row is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from kvatlas.reporting import labels

Record = Mapping[str, Any]


def rows_of(
    results: Record, study: str, table: str = "rows", *, model: str | None = None, mode: str | None = None
) -> list[Record]:
    """Return the rows of one of a study's tables, of one model and question mode if wanted; empty when it was not run."""
    rows = ((results.get("studies") or {}).get(study) or {}).get(table) or []
    return [row for row in rows if model in (None, row.get("model")) and mode in (None, row.get("mode"))]


def models_of(rows: Iterable[Record]) -> list[str]:
    """List the models of some rows by name."""
    return sorted({str(row["model"]) for row in rows})


def arms_of(results: Record, study: str, model: str, mode: str | None = None) -> list[Record]:
    """Return the arms of one model and mode in table order."""
    return sorted(rows_of(results, study, model=model, mode=mode), key=labels.arm_key)


def groups(results: Record, study: str) -> list[tuple[str, str]]:
    """List the (model, mode) pairs of a study, models by name and modes in their usual order.

    Questions without their context are left out.
    """
    order = list(labels.MODE_LABELS)
    pairs = {(str(row["model"]), str(row["mode"])) for row in rows_of(results, study) if row["mode"] != "no_context"}
    return sorted(pairs, key=lambda p: (p[0], order.index(p[1]) if p[1] in order else len(order), p[1]))


def decode_speed(timings: Record, study: str, model: str, mode: str) -> dict[str, float]:
    """Map arm id to its decode speed in tokens/s, the median over its cells."""
    speeds: dict[str, list[float]] = {}
    for row in timings.get("rows") or []:
        same = (row.get("study"), row.get("model"), row.get("mode")) == (study, model, mode)
        if same and labels.known(row.get("decode_tokens_per_s")):
            speeds.setdefault(str(row["arm"]), []).append(float(row["decode_tokens_per_s"]))
    return {arm: median(values) for arm, values in speeds.items()}
