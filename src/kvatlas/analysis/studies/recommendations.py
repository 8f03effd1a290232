"""Recommendations by workload: for each, the smallest arm that a test shows to be good enough, or none.

Knows the rows and contrasts of the task suite. Nothing is recommended because it looks good: an arm is chosen only
where the one-sided test rejects that it is worse by the margin, after Holm's correction over all arms that compete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas.analysis.statistics import multiplicity, paired_tests
from kvatlas.analysis.statistics.multiplicity import ALPHA
from kvatlas.analysis.studies.arm_twins import NO_BUDGET
from kvatlas.grid.policy_parameters import FULL

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Workload:
    """What somebody wants to serve, and what an arm must be shown to keep.

    Args:
        metric: of the contrasts with the full cache. margin: how far behind an arm may be, in the metric's unit.
        lower_is_better: true for NLLs. evicting: only arms that bound the cache compete.
    """

    name: str
    criterion: str
    metric: str
    margin: float
    lower_is_better: bool = False
    evicting: bool = False


WORKLOADS = (
    Workload("anything", "loses less than 5 points of task accuracy", "accuracy", 0.05),
    Workload("memory-critical", "loses less than 15 points of task accuracy", "accuracy", 0.15),
    Workload(
        "recall from anywhere in a bounded cache",
        "evicts, and loses less than 5 points of needle accuracy",
        "accuracy_needle",
        0.05,
        evicting=True,
    ),
    Workload(
        "streaming without recall",
        "evicts, and raises online perplexity by less than 5%",
        "online_nll",
        math.log(1.05),
        lower_is_better=True,
        evicting=True,
    ),
)


def choose(model: str, rows: Sequence[Row], contrasts: Sequence[Row]) -> list[dict[str, Any]]:
    """Return {model, workload, criterion, arm, share, diff, ci, p, candidates, shown} per workload.

    `arm` is None where no arm passed. `share` is the arm's resident bytes over the full bf16 cache's. `candidates`
    arms competed, those of `shown` passed the test.
    """
    by_arm = {row["arm"]: row for row in rows}
    recommendations = []
    for workload in WORKLOADS:
        fits = _competes(workload, by_arm)
        competing = [
            row
            for row in contrasts
            if row["metric"] == workload.metric and row["versus"] == FULL and fits(row["arm"]) and row["gate_passed"]
        ]
        adjusted = multiplicity.holm([_p(row, workload) for row in competing])
        passed = [(row, p) for row, p in zip(competing, adjusted, strict=True) if p <= ALPHA]
        best = min(passed, key=lambda pair: _share(by_arm[pair[0]["arm"]]), default=None)
        chosen: dict[str, Any] = dict.fromkeys(("arm", "share", "diff", "ci", "p"))
        if best is not None:
            row, p = best
            share = _share(by_arm[row["arm"]])
            chosen = {"arm": row["arm"], "share": share, "diff": row["diff"], "ci": row["ci"], "p": p}
        ids = {"model": model, "workload": workload.name, "criterion": workload.criterion, "metric": workload.metric}
        recommendations.append(
            ids | chosen | {"candidates": len(competing), "shown": [row["arm"] for row, _ in passed]}
        )
    return recommendations


def _competes(workload: Workload, by_arm: Mapping[str, Row]) -> Callable[[str], bool]:
    return lambda arm: arm != FULL and (not workload.evicting or by_arm[arm]["budget"] != NO_BUDGET)


def _share(row: Row) -> float:
    return float(row["resident_bf16_mib"] / row["full_bf16_mib"])


def _p(row: Row, workload: Workload) -> float:
    """The one-sided p that the arm is not behind by the margin, from the contrast's mean, error and interval."""
    sign = -1.0 if workload.lower_is_better else 1.0
    ci = row["ci"]
    if ci is None:
        return 1.0
    se, df = row.get("se"), row.get("df", row["n_clusters"] - 1)
    if se is None:
        # A block bootstrap gives an interval and no error; its half-width stands for 1.96 errors.
        se = (ci[1] - ci[0]) / 2 / 1.96
    low, high = sorted((sign * ci[0], sign * ci[1]))
    return paired_tests.p_above(-workload.margin, sign * row["diff"], se, df, (low, high))
