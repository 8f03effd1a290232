"""From one aggregated number to the verdict on one part of a claim, and from parts to the verdict on the claim.

Knows contrasts (a difference with its error) and levels (a value with its interval); knows no studies and
no files.

A claim holds when all its parts hold, so its p is the largest of its parts' (an intersection-union test
needs no correction); it is contradicted when one part is, so that p is the smallest of its parts' times
their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats as scipy_stats

from kvatlas.analysis.statistics.intervals import CONFIDENCE, Interval, clusters_to_resolve
from kvatlas.analysis.statistics.paired_tests import p_above

SUPPORTED = "supported"
CONTRADICTED = "contradicted"
NOT_RESOLVED = "not resolved"
NOT_RUN = "not run"

CONTRAST_TESTS = ("superiority", "non_inferiority", "equivalence", "difference")
LEVEL_TESTS = ("level", "value")


@dataclass(frozen=True)
class Part:
    """The evidence for one part of a claim: p for it and against it, and whether the interval says so too.

    `by_means`: what the effect says when it is read as it is, without its error.
    """

    name: str
    effect: float
    ci: Interval | None
    p_for: float | None
    p_against: float | None
    interval_for: bool
    interval_against: bool
    by_means: bool
    n_clusters: int | None = None
    n_needed: int | None = None

    def as_row(self) -> dict[str, Any]:
        """Return the part as it stands in results.json."""
        ci = None if self.ci is None else list(self.ci)
        p = None if self.p_for is None or self.p_against is None else min(self.p_for, self.p_against)
        return {"name": self.name, "effect": self.effect, "ci": ci, "p": p, "n_clusters": self.n_clusters}


def judge_contrast(
    row: Mapping[str, Any], test: str, *, direction: str, margin: float, name: str, alpha: float = 0.05
) -> Part:
    """Weigh one contrast row {diff, ci, p, n_clusters[, se, df]}; `margin` is in the metric's unit.

    superiority: the difference goes in `direction` by more than `margin` (with margin 0 the row's own
    paired p decides).
    non_inferiority: in `direction`, the arm is not behind by as much as `margin` (one-sided).
    equivalence: the difference lies within +-margin (two one-sided tests).
    difference: the difference is not zero; contradicted when equivalent within `margin`.

    `n_needed` is the number of clusters that would settle the part at `alpha` if the observed effect and
    spread were the true ones.
    """
    sign = 1.0 if direction == "greater" else -1.0
    paired = _Signed.of(row, sign)
    if test == "superiority":
        p = row["p"] if margin == 0 else min(1.0, 2 * min(paired.p_over(margin), paired.p_under(margin)))
        p_for, p_against = (p, 1.0) if paired.diff > margin else (1.0, p)
        bounds = (margin, margin)
    elif test == "non_inferiority":
        p_for, p_against = paired.p_over(-margin), paired.p_under(-margin)
        bounds = (-margin, -margin)
    else:
        inside = max(paired.p_over(-margin), paired.p_under(margin))
        outside = min(1.0, 2 * min(paired.p_under(-margin), paired.p_over(margin)))
        return _judge_band(row, paired, test, margin, inside=inside, outside=outside, name=name, alpha=alpha)
    return Part(
        name,
        row["diff"],
        _interval(row),
        p_for,
        p_against,
        interval_for=paired.lower(test) > bounds[0],
        interval_against=paired.upper(test) < bounds[1],
        by_means=paired.diff > bounds[0],
        n_clusters=row["n_clusters"],
        n_needed=paired.clusters_for(paired.diff - bounds[0], alpha=alpha * (1 if test == "superiority" else 2)),
    )


def judge_level(row: Mapping[str, Any], metric: str, *, direction: str, bound: float, name: str) -> Part:
    """Weigh one arm's level: on which side of `bound` its 95% interval `<metric>_ci` lies."""
    ci = row.get(f"{metric}_ci")
    low, high = (None, None) if ci is None else ci
    above, below = low is not None and low > bound, high is not None and high < bound
    holds, fails = (above, below) if direction == "greater" else (below, above)
    n = row.get("n_clusters")
    needed = None if ci is None or n is None else _level_clusters(row[metric], _pair(ci), bound, n)
    by_means = row[metric] > bound if direction == "greater" else row[metric] < bound
    return Part(name, row[metric], _pair(ci), None, None, holds, fails, by_means, n, needed)


def judge_value(row: Mapping[str, Any], metric: str, *, target: float, tolerance: float, name: str) -> Part:
    """Weigh a number that has no sampling error (bytes, bits): within `tolerance` of `target` or not."""
    near = abs(row[metric] - target) <= tolerance
    return Part(name, row[metric], None, None, None, near, not near, near)


def claim_p(parts: Sequence[Part]) -> tuple[float | None, float | None]:
    """Return the claim's p for and p against; None where its test is an interval alone."""
    supports = [part.p_for for part in parts if part.p_for is not None]
    againsts = [part.p_against for part in parts if part.p_against is not None]
    if not supports or not againsts:
        return None, None
    return max(supports), min(1.0, len(againsts) * min(againsts))


def decide(parts: Sequence[Part], p_for: float | None, p_against: float | None, alpha: float) -> str:
    """Return the verdict on a claim from its parts and its p-values, already adjusted for the number of claims.

    Both must agree: the p is under `alpha` and the interval excludes the bound; intervals alone where there
    is no p.
    """
    if all(part.interval_for for part in parts) and (p_for is None or p_for <= alpha):
        return SUPPORTED
    if any(part.interval_against for part in parts) and (p_against is None or p_against <= alpha):
        return CONTRADICTED
    return NOT_RESOLVED


def weakest(parts: Sequence[Part]) -> Part:
    """Return the part that decides: one that is contradicted, else the one with the largest p for the claim."""
    return max(parts, key=lambda part: (part.interval_against, part.p_for or 0.0, not part.interval_for))


@dataclass(frozen=True)
class _Signed:
    """A paired difference turned so that larger is what the claim says."""

    diff: float
    se: float
    df: int
    n: int
    ci: Interval | None

    @classmethod
    def of(cls, row: Mapping[str, Any], sign: float) -> _Signed:
        n, ci = int(row["n_clusters"]), _interval(row)
        df = int(row.get("df", n - 1))
        if ci is not None and sign < 0:
            ci = (-ci[1], -ci[0])
        se = row.get("se")
        if se is None:  # a section that reports only the interval: invert Student's t
            se = 0.0 if ci is None or df < 1 else (ci[1] - ci[0]) / 2 / _t(0.5 + CONFIDENCE / 2, df)
        return cls(sign * float(row["diff"]), float(se), df, n, ci)

    def p_over(self, bound: float) -> float:
        return p_above(bound, self.diff, self.se, self.df, self.ci)

    def p_under(self, bound: float) -> float:
        flipped = None if self.ci is None else (-self.ci[1], -self.ci[0])
        return p_above(-bound, -self.diff, self.se, self.df, flipped)

    def lower(self, test: str) -> float:
        """Lower bound of the interval that belongs to the test: 95% two-sided, or 90% for one-sided tests at 5%."""
        return -math.inf if self.ci is None or self.df < 1 else self.diff - self._half(test, self.diff - self.ci[0])

    def upper(self, test: str) -> float:
        return math.inf if self.ci is None or self.df < 1 else self.diff + self._half(test, self.ci[1] - self.diff)

    def _half(self, test: str, half: float) -> float:
        if test in ("superiority", "difference"):
            return half
        if self.se > 0:
            return half * _t(CONFIDENCE, self.df) / _t(0.5 + CONFIDENCE / 2, self.df)
        if not 0 < half < 1:
            return half
        # The score interval z^2 / (n + z^2) of `no_flip_interval`, at one-sided instead of two-sided 95%.
        odds = half / (1 - half) * (scipy_stats.norm.ppf(CONFIDENCE) / scipy_stats.norm.ppf(0.5 + CONFIDENCE / 2)) ** 2
        return float(odds / (1 + odds))

    def clusters_for(self, gap: float, *, alpha: float) -> int | None:
        """Clusters at which a true difference as large as the observed one lies clear of the bound `gap` away.

        Power 80%, two-sided `alpha`; where no cluster disagrees, the score interval just excludes the bound
        instead.
        """
        if self.df < 1 or gap == 0:
            return None
        if self.se > 0:
            return clusters_to_resolve(gap, self.se * math.sqrt(self.n), alpha=alpha)
        half = self.diff - self.lower("superiority")
        if not 0 < half < 1 or not 0 < abs(gap) < 1:
            return None
        z2 = (scipy_stats.norm.isf(alpha / 2) / scipy_stats.norm.ppf(0.5 + CONFIDENCE / 2)) ** 2
        return max(2, math.ceil(self.n * z2 * half / (1 - half) * (1 - abs(gap)) / abs(gap)))


def _judge_band(
    row: Mapping[str, Any],
    paired: _Signed,
    test: str,
    margin: float,
    *,
    inside: float,
    outside: float,
    name: str,
    alpha: float,
) -> Part:
    within = paired.lower("equivalence") > -margin and paired.upper("equivalence") < margin
    if test == "equivalence":
        beyond = paired.lower("superiority") > margin or paired.upper("superiority") < -margin
        needed = paired.clusters_for(margin - abs(paired.diff), alpha=2 * alpha)
        by_means = abs(paired.diff) < margin
        return Part(
            name, row["diff"], _interval(row), inside, outside, within, beyond, by_means, row["n_clusters"], needed
        )
    apart = paired.lower("difference") > 0 or paired.upper("difference") < 0
    needed = paired.clusters_for(paired.diff, alpha=alpha)
    by_means = paired.diff != 0
    return Part(name, row["diff"], _interval(row), row["p"], inside, apart, within, by_means, row["n_clusters"], needed)


def _level_clusters(value: float, ci: Interval | None, bound: float, n: int) -> int | None:
    """Clusters at which the interval would just exclude `bound`: width goes as 1/sqrt(n), as 1/n at 0 and 1."""
    if ci is None or value == bound:
        return None
    ratio = (ci[1] - value if value < bound else value - ci[0]) / abs(bound - value)
    return math.ceil(n * ratio ** (1 if value in (0.0, 1.0) else 2))


def _t(quantile: float, df: int) -> float:
    return float(scipy_stats.t.ppf(quantile, df))


def _interval(row: Mapping[str, Any]) -> Interval | None:
    return _pair(row["ci"])


def _pair(ci: Sequence[float] | None) -> Interval | None:
    return None if ci is None else (float(ci[0]), float(ci[1]))
