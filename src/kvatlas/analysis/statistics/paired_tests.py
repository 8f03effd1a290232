"""Paired tests: every p-value compares two arms on the same prompts, cluster by cluster.

Knows numbers only: no trials, no arms, no files. Intervals of a single arm are in `intervals`,
adjusted p-values in `multiplicity`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from kvatlas.analysis.statistics.intervals import CONFIDENCE, Interval, no_flip_interval, stratified_mean

EXACT_FLIPS = 2**14
MONTE_CARLO_FLIPS = 9_999
BOOTSTRAPS = 9_999
BLOCK_TOKENS = 64
SEED = 20_240_601  # fixed: the same trials give the same p


@dataclass(frozen=True)
class Paired:
    """A paired difference of two arms over clusters: mean, its interval, and the sign-flip p."""

    diff: float
    ci: Interval | None
    p: float
    se: float
    df: int
    n_clusters: int
    test: str

    def as_row(self) -> dict[str, Any]:
        """Return the fields as they stand in a section's contrasts."""
        return asdict(self) | {"ci": None if self.ci is None else list(self.ci)}


def paired_difference(
    differences: Sequence[float], strata: Sequence[Hashable] | None = None, *, prompts: int | None = None
) -> Paired:
    """Compare two arms by their per-cluster differences.

    Args:
        differences: one value per cluster. strata: the clusters' contexts, weighed equally (see
            `stratified_mean`).
        prompts: the number of prompts when the differences are of recalls; then clusters that all agree
            (within each context) get `no_flip_interval`.

    With one stratum the interval is that of `scipy.stats.ttest_1samp`.
    """
    estimate = stratified_mean(differences, strata)
    interval = estimate.interval()
    if prompts is not None and estimate.se == 0:
        interval = no_flip_interval(estimate.value, prompts, estimate.df)
    p, test = sign_flip(differences, strata)
    return Paired(estimate.value, interval, p, estimate.se, estimate.df, estimate.n_clusters, test)


def sign_flip(differences: Sequence[float], strata: Sequence[Hashable] | None = None) -> tuple[float, str]:
    """Return the two-sided sign-flip p of the mean difference and the words that say how it was computed.

    Exact (all 2^m sign patterns of the m non-zero clusters) up to 2^14, else Monte Carlo with a fixed seed.
    Zero differences stay zero under every flip, so leaving them out changes nothing.
    """
    values = np.asarray(differences, dtype=float) * _weights(len(differences), strata)
    values = values[np.abs(values) > 1e-15]
    if values.size == 0:
        return 1.0, "sign-flip, exact (no cluster differs)"
    if values.size == 1:  # scipy wants two observations; both signs are equally extreme
        return 1.0, "sign-flip, exact (2 patterns)"
    scale = float(np.abs(values).max())
    exact = 2**values.size <= EXACT_FLIPS
    result = stats.permutation_test(
        (values,),
        # Rounded, because recalls tie often and sums of floats that should tie differ in the last bits.
        lambda sample, axis: np.round(np.sum(sample, axis=axis) / scale, 10),
        permutation_type="samples",
        n_resamples=2**values.size if exact else MONTE_CARLO_FLIPS,
        vectorized=True,
        rng=np.random.default_rng(SEED),
    )
    words = f"exact ({2**values.size} patterns)" if exact else f"Monte Carlo ({MONTE_CARLO_FLIPS} flips, seed {SEED})"
    return float(result.pvalue), f"sign-flip, {words}"


def p_above(bound: float, diff: float, se: float, df: int, ci: Interval | None) -> float:
    """Return the one-sided p for "the paired difference is above `bound`": small where the data say so.

    Args:
        diff, se, df, ci: a paired difference as `paired_difference` reports it; `ci` is its 95% interval.

    Non-inferiority with margin m of a score where higher is better is `p_above(-m, ...)`. Where no cluster
    disagrees (`se` = 0) the t statistic is undefined: the score test behind `no_flip_interval` takes its place, and
    numbers that are identical (no interval either) are certain. 1 where nothing is known.
    """
    if df < 1 or ci is None:
        return 1.0
    gap = diff - bound
    if se > 0:
        return float(stats.t.sf(gap / se, df))
    half = max(diff - ci[0], ci[1] - diff)
    if half <= 0 or abs(gap) >= 1:
        return 0.0 if gap > 0 else 1.0
    z2 = float(stats.norm.ppf(0.5 + CONFIDENCE / 2)) ** 2
    effective = z2 * (1 - half) / half
    return float(stats.norm.sf(np.sign(gap) * np.sqrt(effective * abs(gap) / (1 - abs(gap)))))


def non_inferiority(
    differences: Sequence[float],
    margin: float,
    strata: Sequence[Hashable] | None = None,
    *,
    prompts: int | None = None,
) -> float:
    """Return the one-sided paired p for "the arm loses less than `margin`".

    `differences` are arm minus reference per cluster, of a score where higher is better.
    """
    paired = paired_difference(differences, strata, prompts=prompts)
    return p_above(-margin, paired.diff, paired.se, paired.df, paired.ci)


def perplexity_ratio(
    nlls: Sequence[ArrayLike],
    reference: Sequence[ArrayLike],
    *,
    block: int = BLOCK_TOKENS,
    resamples: int = BOOTSTRAPS,
) -> tuple[float, Interval | None]:
    """Return exp(mean paired NLL difference) and its percentile bootstrap interval.

    Args:
        nlls, reference: one array of per-token NLLs (nats) per document, both arms on the same tokens.
        block: tokens of a block.

    One document: circular blocks of `block` tokens are resampled, because the losses of neighbouring tokens
    depend on each other. Ten or more documents: whole documents are. Between: documents, and blocks inside each.
    The interval is None for one document under two blocks.
    """
    differences = [
        np.asarray(a, dtype=float) - np.asarray(b, dtype=float) for a, b in zip(nlls, reference, strict=True)
    ]
    lengths = np.asarray([difference.size for difference in differences], dtype=float)
    sums = np.asarray([difference.sum() for difference in differences])
    ratio = float(np.exp(sums.sum() / lengths.sum()))
    if len(differences) == 1 and lengths[0] < 2 * block:
        return ratio, None
    rng = np.random.default_rng(SEED)
    if len(differences) == 1:
        means = _block_means(differences[0], block, resamples, rng)
    else:
        chosen = rng.integers(0, len(differences), size=(resamples, len(differences)))
        totals = np.tile(sums, (resamples, 1))
        if len(differences) < 10:
            totals = np.stack([_block_means(d, block, resamples, rng) * d.size for d in differences], axis=1)
        means = np.take_along_axis(totals, chosen, axis=1).sum(axis=1) / lengths[chosen].sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.exp(np.quantile(means, [tail, 1 - tail]))
    return ratio, (float(low), float(high))


def interaction(
    both: Sequence[float], evicted: Sequence[float], quantized: Sequence[float], full: Sequence[float]
) -> list[float]:
    """Return (e, q) - (e, 0) - (0, q) + (0, 0) per cluster: zero where both losses add up."""
    return [eq - e - q + f for eq, e, q, f in zip(both, evicted, quantized, full, strict=True)]


def _block_means(
    differences: NDArray[np.float64], block: int, resamples: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Means of circular block resamples [resamples], each of whole blocks, by prefix sums of the circle."""
    n = differences.size
    block = min(block, n)
    prefix = np.concatenate([[0.0], np.cumsum(np.concatenate([differences, differences[: block - 1]]))])
    block_sums = prefix[block:] - prefix[:-block]
    starts = rng.integers(0, n, size=(resamples, -(-n // block)))
    means: NDArray[np.float64] = block_sums[starts].mean(axis=1) / block
    return means


def _weights(n: int, strata: Sequence[Hashable] | None) -> NDArray[np.float64]:
    if strata is None:
        return np.full(n, 1.0 / n)
    counts: dict[Hashable, int] = {}
    for stratum in strata:
        counts[stratum] = counts.get(stratum, 0) + 1
    return np.asarray([1.0 / (len(counts) * counts[stratum]) for stratum in strata])
