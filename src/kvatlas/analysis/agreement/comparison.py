"""The comparison of two reports: does the second repeat the first? One record, from which the page is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvatlas.analysis.agreement import arms, settings
from kvatlas.analysis.agreement.report import Report
from kvatlas.analysis.statistics.multiplicity import ALPHA

SCHEMA = 1
AGREE, DIFFER = "agree", "differ"
_IDS = ("model", "arm", "mode", "context", "protocol", "granularity", "text", "queries")
_INTERVAL = "_ci"

Comparison = dict[str, Any]


def compare(first: Report, second: Report) -> Comparison:
    """Compare two reports.

    Returns {schema, first, second, settings, arms, only, aggregates, claims, verdict}; `verdict` is "differ" where an arm
    differs by more than chance and tolerance (see `arms`). Raises KvatlasError where they cannot be compared.
    """
    rows, only = arms.compare(first, second)
    return {
        "schema": SCHEMA,
        "alpha": ALPHA,
        "tolerance": arms.TOLERANCE,
        **{
            side: {"name": report.name, "run": report.run, "results_sha256": report.digest}
            for side, report in (("first", first), ("second", second))
        },
        "settings": settings.differences(first, second),
        "arms": rows,
        "only": only,
        "aggregates": _aggregates(first, second),
        "claims": _claims(first, second),
        "verdict": DIFFER if any(row["differs"] for row in rows) else AGREE,
    }


def _aggregates(first: Report, second: Report) -> dict[str, Any]:
    """Ask of every aggregate with an interval whether it lies in the other's; list those that do not."""
    one, other = (dict(_estimates(report)) for report in (first, second))
    outside = []
    common = [key for key in one if key in other]
    for key in common:
        (value, interval), (repeated, repeated_interval) = one[key], other[key]
        if not (_inside(value, repeated_interval) and _inside(repeated, interval)):
            study, metric, ids = key
            outside.append(
                {"study": study, "metric": metric, **dict(ids), "first": value, "second": repeated}
                | {"first_ci": list(interval), "second_ci": list(repeated_interval)}
            )
    return {"n": len(common), "inside": len(common) - len(outside), "outside": outside}


def _inside(value: float, interval: tuple[float, float]) -> bool:
    return interval[0] <= value <= interval[1]


def _estimates(report: Report) -> Iterator[tuple[Any, tuple[float, tuple[float, float]]]]:
    """Yield ((study, metric, ids), (value, interval)) of every aggregate that has an interval."""
    for study, section in (report.results.get("studies") or {}).items():
        for row in (section or {}).get("rows") or []:
            ids = tuple((name, row[name]) for name in _IDS if isinstance(row.get(name), str | int))
            for key, interval in row.items():
                metric = key.removesuffix(_INTERVAL)
                if key.endswith(_INTERVAL) and interval is not None and row.get(metric) is not None:
                    yield (study, metric, ids), (row[metric], (interval[0], interval[1]))


def _claims(first: Report, second: Report) -> dict[str, Any]:
    """List the claims whose verdicts are not the same."""
    one, other = (
        {(c["id"], c.get("model")): c for c in report.results.get("claims") or []} for report in (first, second)
    )
    common = [key for key in one if key in other]
    changed = [_changed(one[key], other[key]) for key in common if one[key]["verdict"] != other[key]["verdict"]]
    return {"n": len(common), "changed": changed, "only": len({*one} ^ {*other})}


def _changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: one.get(name) for name in ("id", "model", "sentence")}
    sides = {
        f"{side}_{name}": claim.get(name)
        for side, claim in (("first", one), ("second", other))
        for name in ("verdict", "effect", "p_adjusted", "n_clusters")
    }
    return ids | sides
