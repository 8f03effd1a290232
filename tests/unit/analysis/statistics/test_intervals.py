"""Intervals and sample sizes against published numbers, scipy and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kvatlas.analysis.statistics import intervals

NEEDLES = 5  # per (context x seed) trial of the published study

# Hits per trial compatible with a row's printed SE and depth table; recall, SE and Korn-Graubard interval in percent.
# Where several vectors are compatible, any of them has the same mean and SE.
PUBLISHED = {
    "Baseline": ([5, 5, 5, 5, 5, 4, 4, 4, 4], 91.1, 3.5, (76.3, 98.1)),
    "SnapKV 4x": ([5, 5, 5, 4, 4, 4, 4, 4, 3], 84.4, 4.4, (68.0, 94.5)),
    "Pinned 4x": ([5, 5, 5, 5, 5, 2, 2, 2, 2], 73.3, 10.5, (43.1, 92.9)),
    "StreamingLLM": ([1, 1, 1, 0, 0, 0, 0, 0, 0], 6.7, 3.3, None),
    "H2O 4x": ([1, 1, 0, 0, 0, 0, 0, 0, 0], 4.4, 2.9, None),
    "H2O 8x": ([1, 0, 0, 0, 0, 0, 0, 0, 0], 2.2, 2.2, None),
    "Naive Drop": ([0] * 9, 0.0, 0.0, (0.0, 10.2)),
}


def vectors_with(recall: float, se: float) -> list[list[int]]:
    """All hit vectors of nine trials whose mean and published SE round to the printed ones."""
    vectors = []
    for vector in itertools.combinations_with_replacement(range(NEEDLES + 1), 9):
        means = np.asarray(vector) / NEEDLES
        if round(100 * means.mean(), 1) == recall and round(100 * float(scipy_stats.sem(means)), 1) == se:
            vectors.append(list(vector))
    return vectors


@pytest.mark.parametrize("name", [name for name, row in PUBLISHED.items() if row[2] is not None])
def test_published_se_is_that_of_the_nine_trial_means(name: str) -> None:
    hits, recall, se, _ = PUBLISHED[name]
    means = np.asarray(hits) / NEEDLES
    assert round(100 * float(means.mean()), 1) == recall
    computed = intervals.published_se(means)
    assert computed is not None
    assert round(100 * computed, 1) == se


@pytest.mark.parametrize("name", [name for name, row in PUBLISHED.items() if row[3] is not None])
def test_korn_graubard_reproduces_the_audited_intervals_of_the_hit_vectors(name: str) -> None:
    hits, _, _, expected = PUBLISHED[name]
    interval = intervals.recall_interval([h / NEEDLES for h in hits], 45)
    assert tuple(round(100 * bound, 1) for bound in interval) == expected


@pytest.mark.parametrize(
    ("recall", "se", "expected"),
    [
        (80.0, 6.7, (60.4, 92.7)),
        (46.7, 12.5, (18.9, 76.1)),
        (44.4, 11.9, (18.2, 73.2)),
        (40.0, 12.0, (14.6, 70.1)),
    ],
)
def test_korn_graubard_reproduces_the_audited_intervals_of_rows_with_several_vectors(
    recall: float, se: float, expected: tuple[float, float]
) -> None:
    results = {
        tuple(round(100 * bound, 1) for bound in intervals.recall_interval([h / NEEDLES for h in vector], 45))
        for vector in vectors_with(recall, se)
    }
    assert expected in results


def test_zero_hits_never_get_an_interval_without_width() -> None:
    assert intervals.recall_interval([0.0] * 9, 45)[1] == pytest.approx(0.102, abs=5e-4)
    assert intervals.exact_interval(0, 45)[1] == pytest.approx(0.079, abs=5e-4)
    assert intervals.exact_interval(0, 9)[1] == pytest.approx(0.336, abs=5e-4)
    assert intervals.exact_interval(9, 9)[0] == pytest.approx(0.664, abs=5e-4)
    assert intervals.exact_interval(3, 3)[0] == pytest.approx(0.292, abs=5e-4)


def test_korn_graubard_without_clustering_is_clopper_pearson() -> None:
    # As many clusters as trials: the effective n is n, up to the (n - 1)/n of the sample variance.
    hits = [1.0] * 30 + [0.0] * 10
    assert intervals.recall_interval(hits, 40) == pytest.approx(intervals.exact_interval(30, 40), abs=0.006)


def test_korn_graubard_of_one_cluster_knows_nothing() -> None:
    assert intervals.recall_interval([0.8], 5) == (0.0, 1.0)


@given(
    st.lists(st.integers(0, 5), min_size=2, max_size=20),
)
@settings(max_examples=200, deadline=None)
def test_korn_graubard_holds_the_recall_and_mirrors(hits: list[int]) -> None:
    means = [h / 5 for h in hits]
    low, high = intervals.recall_interval(means, 5 * len(means))
    assert 0 <= low <= np.mean(means) + 1e-9
    assert np.mean(means) - 1e-9 <= high <= 1
    mirrored = intervals.recall_interval([1 - mean for mean in means], 5 * len(means))
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-7)


def test_korn_graubard_covers_where_wilson_over_needles_does_not() -> None:
    rng = np.random.default_rng(5)
    covered = {"korn_graubard": 0, "wilson": 0}
    runs = 300
    for _ in range(runs):
        p = rng.beta(0.7 * 1.5, 0.3 * 1.5, size=12)  # ICC = 1 / (1 + 1.5) = 0.4 around 0.7
        hits = rng.binomial(5, p)
        low, high = intervals.recall_interval(list(hits / 5), 60)
        covered["korn_graubard"] += low <= 0.7 <= high
        wilson = scipy_stats.binomtest(int(hits.sum()), 60).proportion_ci(method="wilson")
        covered["wilson"] += wilson.low <= 0.7 <= wilson.high
    assert covered["korn_graubard"] / runs > 0.92
    assert covered["wilson"] / runs < 0.85


def test_stratified_mean_weighs_contexts_equally_and_leaves_their_difference_out_of_the_error() -> None:
    values = [0.0, 0.2, 1.0, 0.8, 0.9, 0.9]
    strata = ["short"] * 2 + ["long"] * 4
    estimate = intervals.stratified_mean(values, strata)
    assert estimate.value == pytest.approx((0.1 + 0.9) / 2)
    expected = math.sqrt((np.var([0, 0.2], ddof=1) / 2 + np.var([1.0, 0.8, 0.9, 0.9], ddof=1) / 4) / 4)
    assert estimate.se == pytest.approx(expected)
    assert estimate.df == 4
    assert estimate.se < intervals.stratified_mean(values).se


def test_a_context_with_one_cluster_is_pooled_with_the_others() -> None:
    estimate = intervals.stratified_mean([0.2, 0.4, 0.9], ["a", "a", "b"])
    assert estimate.value == pytest.approx(0.6)
    assert estimate.se == pytest.approx(float(scipy_stats.sem([0.2, 0.4, 0.9])))
    assert estimate.df == 2


def test_clusters_to_resolve_have_the_power_and_one_fewer_does_not() -> None:
    n = intervals.clusters_to_resolve(0.1, 0.3)
    assert n == 73  # the textbook value of a paired t test, d = 1/3, power 0.8
    assert intervals.paired_power(0.1, 0.3, n) >= 0.8 > intervals.paired_power(0.1, 0.3, n - 1)
    rng = np.random.default_rng(4)
    simulated = scipy_stats.ttest_1samp(rng.normal(0.1, 0.3, size=(4000, n)), 0, axis=1).pvalue < 0.05
    assert float(simulated.mean()) == pytest.approx(0.8, abs=0.03)


def test_clusters_to_resolve_respect_the_sign_flip_floor() -> None:
    assert intervals.clusters_to_resolve(1.0, 0.0) == 6  # 2 / 2^5 is over 0.05
    assert intervals.clusters_to_resolve(1.0, 0.01, alpha=0.01) == 8
    assert intervals.clusters_to_resolve(0.0, 0.3) is None
    assert intervals.clusters_to_resolve(1e-9, 1.0) is None
