"""The statistics behind verdicts, written a second time: numpy and scipy, and nothing of `kvatlas.analysis`.

A contrast becomes `Evidence`; a test of a claim turns evidence into a `Side` (p and interval for it and against it);
sides of all parts become the verdict on the claim.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import stats

ALPHA = 0.05
EXACT_UP_TO = 14  # clusters that differ
DRAWS = 9_999
SEED = 20_240_601
BLOCK = 64  # predictions

Bounds = tuple[float, float]


@dataclass(frozen=True)
class Evidence:
    """A paired difference: effect, 95% interval, two-sided sign-flip p.

    `pairs` is the effective number of pairs of prompts where no cluster disagrees and `se` is 0: then score bounds take
    the place of Student's t.
    """

    effect: float
    ci: Bounds | None
    p: float
    se: float
    df: int
    n_clusters: int
    pairs: float | None = None

    def turned(self) -> Evidence:
        """The same evidence on versus minus arm."""
        ci = None if self.ci is None else (-self.ci[1], -self.ci[0])
        return Evidence(-self.effect, ci, self.p, self.se, self.df, self.n_clusters, self.pairs)

    def p_above(self, bound: float) -> float:
        """One-sided p for a difference above `bound`."""
        if self.ci is None or self.df < 1:
            return 1.0
        gap = self.effect - bound
        if self.se > 0:
            return float(stats.t.sf(gap / self.se, self.df))
        if self.pairs is None or abs(gap) >= 1:
            return 0.0 if gap > 0 else 1.0
        score = math.sqrt(self.pairs * abs(gap) / (1 - abs(gap)))
        return float(stats.norm.sf(math.copysign(score, gap)))

    def p_below(self, bound: float) -> float:
        """One-sided p for a difference below `bound`."""
        return self.turned().p_above(-bound)

    def interval(self, confidence: float) -> Bounds:
        """The 95% interval, or the 90% one that belongs to one-sided tests at 5%."""
        if self.ci is None or self.df < 1:
            return -math.inf, math.inf
        if confidence == 0.95:
            return self.ci
        if self.pairs is not None:
            half = score_half(self.pairs, confidence)
            return max(-1.0, self.effect - half), min(1.0, self.effect + half)
        shrunk = two_sided_t(confidence, self.df) / two_sided_t(0.95, self.df)
        low, high = self.ci
        return self.effect - (self.effect - low) * shrunk, self.effect + (high - self.effect) * shrunk


def two_sided_t(confidence: float, df: int) -> float:
    return float(stats.t.isf((1 - confidence) / 2, df))


def score_half(pairs: float, confidence: float) -> float:
    """Half-width of Tango's bound of a paired difference without a discordant pair."""
    z2 = stats.norm.isf((1 - confidence) / 2) ** 2
    return float(z2 / (pairs + z2))


def effective(prompts: int, df: int) -> float:
    """Prompts, adjusted for the clusters that they come in."""
    return prompts * (two_sided_t(0.95, prompts - 1) / two_sided_t(0.95, df)) ** 2


def stratified(values: Sequence[float], strata: Sequence[Hashable] | None = None) -> tuple[float, float, int]:
    """Mean that weighs strata equally, its standard error and degrees of freedom."""
    labels = [None] * len(values) if strata is None else list(strata)
    groups = [
        np.array([v for v, label in zip(values, labels, strict=True) if label == s]) for s in dict.fromkeys(labels)
    ]
    mean = float(np.mean([group.mean() for group in groups]))
    if any(group.size == 1 for group in groups):
        groups = [np.asarray(values, dtype=float)]
    df = len(values) - len(groups)
    if df < 1:
        return mean, 0.0, 0
    se = math.sqrt(sum(stats.sem(group) ** 2 for group in groups)) / len(groups)
    return mean, (se if se > 1e-13 else 0.0), df


def t_interval(values: Sequence[float]) -> Bounds | None:
    mean, se, df = stratified(values)
    return None if df < 1 else (mean - two_sided_t(0.95, df) * se, mean + two_sided_t(0.95, df) * se)


def paired(differences: Sequence[float], strata: Sequence[Hashable] | None, prompts: int | None) -> Evidence:
    """Differences per cluster; `prompts` is given where they are of hits."""
    mean, se, df = stratified(differences, strata)
    labels = [None] * len(differences) if strata is None else list(strata)
    weighed = [d / labels.count(label) for d, label in zip(differences, labels, strict=True)]
    p = sign_flip(weighed)
    if prompts is None or se > 0:
        ci = (mean - two_sided_t(0.95, df) * se, mean + two_sided_t(0.95, df) * se) if df else None
        return Evidence(mean, ci, p, se, df, len(differences))
    if df < 1:
        return Evidence(mean, (-1.0, 1.0), p, se, df, len(differences))
    pairs = effective(prompts, df)
    half = score_half(pairs, 0.95)
    return Evidence(mean, (max(-1.0, mean - half), min(1.0, mean + half)), p, se, df, len(differences), pairs)


def stream(gaps: Sequence[float]) -> Evidence:
    """Differences per prediction of one stream, in blocks of neighbouring predictions."""
    array = np.asarray(gaps, dtype=float)
    clusters = max(1, math.ceil(array.size / BLOCK))
    ci = block_bootstrap(array) if array.size >= 2 * BLOCK else None
    se = (ci[1] - ci[0]) / 2 / two_sided_t(0.95, clusters - 1) if ci is not None else 0.0
    p = sign_flip([part.sum() for part in np.array_split(array, clusters)])
    return Evidence(float(array.mean()), ci, p, se, clusters - 1, clusters)


def block_bootstrap(values: np.ndarray) -> Bounds:
    """Percentile interval of the mean under the circular block bootstrap."""
    circle = np.concatenate([values, values[: BLOCK - 1]])
    block_means = sliding_window_view(circle, BLOCK).mean(axis=1)
    starts = np.random.default_rng(SEED).integers(0, values.size, size=(DRAWS, math.ceil(values.size / BLOCK)))
    low, high = np.percentile(block_means[starts].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def sign_flip(values: Sequence[float]) -> float:
    """Two-sided p of the sum under random signs: all patterns, or drawn ones where there are too many."""
    differing = np.array([value for value in values if abs(value) > 1e-13])
    if differing.size < 2:
        return 1.0
    return float(
        stats.permutation_test(
            (differing / np.abs(differing).max(),),
            lambda sample, axis: np.sum(sample, axis=axis).round(9),  # equal sums differ in their last bits
            permutation_type="samples",
            n_resamples=2**differing.size if differing.size <= EXACT_UP_TO else DRAWS,
            rng=np.random.default_rng(SEED),
        ).pvalue
    )


def clopper_pearson(hits: float, n: float) -> Bounds:
    low = stats.beta.ppf(0.025, hits, n - hits + 1) if hits > 1e-9 else 0.0
    high = stats.beta.ppf(0.975, hits + 1, n - hits) if n - hits > 1e-9 else 1.0
    return float(low), float(high)


def korn_graubard(values: Sequence[float], strata: Sequence[Hashable], prompts: int) -> Bounds:
    """Interval of a recall from its clusters' means."""
    p, se, df = stratified(values, strata)
    if df < 1:
        return 0.0, 1.0
    binomial = p * (1 - p) / se**2 if se > 0 and 0 < p < 1 else math.inf
    n = effective(prompts, df) * min(binomial, prompts) / prompts
    return clopper_pearson(p * n, n)


@dataclass(frozen=True)
class Side:
    """A part of a claim weighed: p for it and against it (None without a test), and what its interval says."""

    p_for: float | None
    p_against: float | None
    holds: bool
    fails: bool
    by_means: bool

    @property
    def p(self) -> float | None:
        return None if self.p_for is None else min(self.p_for, self.p_against)


def weigh(evidence: Evidence, test: str, direction: str, margin: float) -> Side:
    """Put the question of a test to a contrast."""
    seen = evidence if direction == "greater" else evidence.turned()
    (low, high), (low90, high90) = seen.interval(0.95), seen.interval(0.90)
    if test == "superiority":
        p = seen.p if margin == 0 else min(1.0, 2 * min(seen.p_above(margin), seen.p_below(margin)))
        ahead = seen.effect > margin
        return Side(p if ahead else 1.0, 1.0 if ahead else p, low > margin, high < margin, ahead)
    if test == "non_inferiority":
        ahead = seen.effect > -margin
        return Side(seen.p_above(-margin), seen.p_below(-margin), low90 > -margin, high90 < -margin, ahead)
    p_inside = max(seen.p_above(-margin), seen.p_below(margin))
    inside = low90 > -margin and high90 < margin
    if test == "difference":
        return Side(seen.p, p_inside, low > 0 or high < 0, inside, seen.effect != 0)
    p_outside = min(1.0, 2 * min(seen.p_below(-margin), seen.p_above(margin)))
    return Side(p_inside, p_outside, inside, low > margin or high < -margin, abs(seen.effect) < margin)


def weigh_level(value: float, ci: Bounds | None, direction: str, bound: float) -> Side:
    above, below = (False, False) if ci is None else (ci[0] > bound, ci[1] < bound)
    if direction == "greater":
        return Side(None, None, above, below, value > bound)
    return Side(None, None, below, above, value < bound)


def weigh_value(value: float, target: float, tolerance: float) -> Side:
    near = abs(value - target) <= tolerance
    return Side(None, None, near, not near, near)


def claim_p(sides: Sequence[Side]) -> Bounds | None:
    """p for and against a claim: all parts must hold, one that fails is enough."""
    favour = [side.p_for for side in sides if side.p_for is not None]
    against = [side.p_against for side in sides if side.p_against is not None]
    if len(favour) < len(sides):
        return None
    return max(favour), min(1.0, len(sides) * min(against))


def adjust(p_values: Sequence[float], primary: bool) -> list[float]:
    """Holm's correction for primary claims, Benjamini and Hochberg's for the others."""
    if not primary:
        return list(stats.false_discovery_control(p_values, method="bh"))
    ranked = sorted(p_values)
    steps = [(len(ranked) - rank) * p for rank, p in enumerate(ranked)]
    return [min(1.0, max(steps[: ranked.index(p) + 1])) for p in p_values]


def verdict(sides: Sequence[Side], p_adjusted: float | None) -> str:
    """The verdict on a claim; the smaller of its two p is the one that was adjusted."""
    both = claim_p(sides)
    p_for = p_against = 0.0  # without a test the intervals decide
    if both is not None:
        p_for, p_against = (p_adjusted, 1.0) if both[0] <= both[1] else (1.0, p_adjusted)
    if all(side.holds for side in sides) and p_for <= ALPHA:
        return "supported"
    if any(side.fails for side in sides) and p_against <= ALPHA:
        return "contradicted"
    return "not resolved"
