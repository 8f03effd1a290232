"""Intervals of one arm (exact binomial, Korn-Graubard for clustered hits, stratified t) and sample sizes.

Knows numbers only: no trials, no arms, no files.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

CONFIDENCE = 0.95
ROUNDING = 1e-28  # a variance of this relative size is the rounding of equal numbers
DESCRIPTIVE_BELOW = 10  # clusters; a smaller sample is described, not inferred from

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A mean of cluster values that weighs every stratum equally, with the standard error of that mean."""

    value: float
    se: float
    df: int
    n_clusters: int

    def interval(self, confidence: float = CONFIDENCE) -> Interval | None:
        """Return Student's t interval, or None when a single cluster leaves the error unknown."""
        if self.df < 1:
            return None
        half = float(stats.t.ppf(0.5 + confidence / 2, self.df)) * self.se
        return self.value - half, self.value + half


def published_se(trial_means: ArrayLike) -> float | None:
    """Return the standard error by the published formula: `scipy.stats.sem` of the (context x seed) trial means.

    None for fewer than two trials. It is printed beside the number of needles, but its n is that of the trials.
    """
    values = np.asarray(trial_means, dtype=float)
    return float(stats.sem(values)) if values.size > 1 else None


@cache  # a run has thousands of cells but few distinct counts
def exact_interval(hits: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the Clopper-Pearson interval of `hits` of `n` independent trials; (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    low, high = stats.binomtest(hits, n).proportion_ci(confidence_level=confidence, method="exact")
    return float(low), float(high)


def stratified_mean(values: Sequence[float], strata: Sequence[Hashable] | None = None) -> Estimate:
    """Average cluster values within each stratum (a context length), then the strata with equal weights.

    The standard error adds the strata's own variances, so differences between contexts, a fixed effect of
    the design, do not enter it; degrees of freedom are clusters minus strata. Where a stratum holds one
    cluster its variance is unknown: then all clusters count as one stratum, which is conservative.
    """
    array = np.asarray(values, dtype=float)
    groups = _groups(array, strata)
    value = float(np.mean([group.mean() for group in groups]))
    if min(group.size for group in groups) < 2:
        groups = [array]
    if array.size < 2:
        return Estimate(value, 0.0, 0, int(array.size))
    variance = sum(float(group.var(ddof=1)) / group.size for group in groups) / len(groups) ** 2
    se = float(np.sqrt(variance)) if variance > ROUNDING * (1 + value**2) else 0.0
    return Estimate(value, se, int(array.size) - len(groups), int(array.size))


def korn_graubard(p: float, variance: float, n: int, df: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the Korn-Graubard (1998) interval of a proportion estimated from clustered trials.

    Args:
        p: estimated proportion. variance: design-based variance of `p`. n: trials. df: clusters minus strata.

    The effective n is p(1-p)/variance, capped at n, and n itself where the variance is zero (so 0 of n is
    not [0, 0]); it is then multiplied by (t_{n-1} / t_{df})^2, also where it was capped, and put into the
    exact beta interval. With df = 0 nothing is known: (0, 1).
    """
    if df < 1 or n < 2:
        return 0.0, 1.0
    spread = p * (1 - p)
    effective = min(spread / variance, n) if variance > 0 and spread > 0 else float(n)
    effective *= _t_ratio(n, df, confidence)
    hits = p * effective
    tail = (1 - confidence) / 2
    low = float(stats.beta.ppf(tail, hits, effective - hits + 1)) if hits > 1e-12 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, effective - hits)) if effective - hits > 1e-12 else 1.0
    return low, high


def recall_interval(
    cluster_means: Sequence[float],
    n: int,
    strata: Sequence[Hashable] | None = None,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Return the Korn-Graubard interval of a recall from its cluster means; `n` is the number of prompts."""
    estimate = stratified_mean(cluster_means, strata)
    return korn_graubard(estimate.value, estimate.se**2, n, estimate.df, confidence)


def no_flip_interval(difference: float, n: int, df: int, confidence: float = CONFIDENCE) -> Interval:
    """Bound a difference of two recalls where all clusters differ by the same, so that the t interval has no width.

    Half-width z^2 / (n' + z^2): Tango's (1998) score bound of a paired difference without a discordant
    pair, at n' = n adjusted for the clusters as in `korn_graubard`; so 0 flips in 9 independent prompts
    still allows a loss of 23 points (one-sided 95%).
    """
    if df < 1 or n < 2:
        return -1.0, 1.0
    z2 = float(stats.norm.ppf(0.5 + confidence / 2)) ** 2
    half = z2 / (n * _t_ratio(n, df, confidence) + z2)
    return max(-1.0, difference - half), min(1.0, difference + half)


def clusters_to_resolve(
    effect: float, sd: float, *, alpha: float = 0.05, power: float = 0.8, limit: int = 1_000_000
) -> int | None:
    """Return the smallest number of clusters at which a paired t test finds a true `effect` with this power.

    `sd` is that of the cluster differences. `alpha` is two-sided. Never under log2(2 / alpha): the exact
    sign-flip p of fewer clusters cannot fall under `alpha`. None when the effect is zero or more than
    `limit` clusters are needed.
    """
    if effect == 0:
        return None
    smallest = max(2, math.ceil(math.log2(2 / alpha)))
    if sd == 0:
        return smallest
    low, high = smallest, limit
    if paired_power(effect, sd, high, alpha=alpha) < power:
        return None
    while low < high:
        middle = (low + high) // 2
        if paired_power(effect, sd, middle, alpha=alpha) >= power:
            high = middle
        else:
            low = middle + 1
    return low


def paired_power(effect: float, sd: float, n: int, *, alpha: float = 0.05) -> float:
    """Return the chance that a paired t test over `n` clusters finds a true `effect` (noncentral t, right sign)."""
    critical = float(stats.t.ppf(1 - alpha / 2, n - 1))
    shift = abs(effect) / sd * np.sqrt(n)
    if shift > critical + 30:  # the noncentral t loses precision far out, where the power is 1 anyway
        return 1.0
    return float(stats.nct.sf(critical, n - 1, shift))


def _t_ratio(n: int, df: int, confidence: float) -> float:
    quantile = 0.5 + confidence / 2
    return float(stats.t.ppf(quantile, n - 1) / stats.t.ppf(quantile, df)) ** 2


def _groups(values: NDArray[np.float64], strata: Sequence[Hashable] | None) -> list[NDArray[np.float64]]:
    if strata is None:
        return [values]
    members: dict[Hashable, list[float]] = {}
    for value, stratum in zip(values, strata, strict=True):
        members.setdefault(stratum, []).append(float(value))
    return [np.asarray(group) for group in members.values()]
