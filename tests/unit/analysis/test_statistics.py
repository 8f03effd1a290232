"""Intervals and tests against published numbers, scipy and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kvatlas.analysis.statistics import intervals, multiplicity, paired_tests

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
    found = []
    for vector in itertools.combinations_with_replacement(range(NEEDLES + 1), 9):
        means = np.asarray(vector) / NEEDLES
        if round(100 * means.mean(), 1) == recall and round(100 * float(scipy_stats.sem(means)), 1) == se:
            found.append(list(vector))
    return found


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


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=30).filter(lambda v: float(np.std(v)) > 1e-6))
@settings(max_examples=50, deadline=None)
def test_paired_interval_of_one_context_is_scipys(differences: list[float]) -> None:
    expected = scipy_stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert paired_tests.paired_difference(differences).ci == pytest.approx((expected.low, expected.high))


def brute_force_sign_flip(differences: list[float]) -> float:
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return float(np.mean([total >= observed - 1e-12 for total in sums]))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=9))
@example([0, 1, 2, 2, -1, -4])  # sums to zero in fifths, not in floats
@settings(max_examples=60, deadline=None)
def test_sign_flip_p_is_that_of_all_sign_patterns(differences: list[int]) -> None:
    values = [d / 5 for d in differences]
    p, words = paired_tests.sign_flip(values)
    assert p == pytest.approx(brute_force_sign_flip(values))
    assert "exact" in words


def test_sign_flip_of_unequal_contexts_flips_their_weighed_differences() -> None:
    differences, strata = [0.4, 0.2, 0.6, -0.2, 0.2], ["a", "a", "b", "b", "b"]
    weighed = [d / 2 / (2 if s == "a" else 3) for d, s in zip(differences, strata, strict=True)]
    assert paired_tests.sign_flip(differences, strata)[0] == pytest.approx(brute_force_sign_flip(weighed))


def test_many_clusters_use_monte_carlo_flips_and_say_so() -> None:
    rng = np.random.default_rng(0)
    differences = list(rng.normal(0.1, 1.0, size=40))
    p, words = paired_tests.sign_flip(differences)
    assert words == f"sign-flip, Monte Carlo ({paired_tests.MONTE_CARLO_FLIPS} flips, seed {paired_tests.SEED})"
    assert (p, words) == paired_tests.sign_flip(differences)
    assert p == pytest.approx(float(scipy_stats.ttest_1samp(differences, 0).pvalue), abs=0.03)


def test_clusters_that_do_not_differ_give_p_1() -> None:
    assert paired_tests.sign_flip([0.0] * 30)[0] == 1.0
    assert paired_tests.paired_difference([0.0, 0.0, 0.0], prompts=15).p == 1.0


def test_no_flips_in_nine_independent_prompts_bound_the_loss_at_23_points() -> None:
    paired = paired_tests.paired_difference([0.0] * 9, prompts=9)
    p = [paired_tests.p_above(-margin, paired.diff, paired.se, paired.df, paired.ci) for margin in (0.22, 0.24)]
    assert p[0] > 0.05 > p[1]
    assert paired_tests.non_inferiority([0.0] * 9, 0.05, prompts=9) > 0.05
    assert paired_tests.non_inferiority([0.0] * 400, 0.05, prompts=2000) < 0.05


@pytest.mark.parametrize("differences", [[0.2] * 8, [0.1] * 4 + [0.3] * 4])
def test_clusters_that_all_agree_within_their_context_keep_an_interval(differences: list[float]) -> None:
    paired = paired_tests.paired_difference(differences, ["a"] * 4 + ["b"] * 4, prompts=40)
    assert paired.se == 0
    assert paired.ci is not None
    assert paired.ci[0] < 0.2 - 0.05
    assert paired.ci[1] > 0.2 + 0.05


@given(
    st.lists(st.floats(-1, 1), min_size=4, max_size=20).filter(lambda v: float(np.std(v)) > 1e-3),
    st.floats(0.01, 0.5),
)
@settings(max_examples=50, deadline=None)
def test_non_inferiority_is_scipys_one_sided_t_test_against_the_margin(values: list[float], margin: float) -> None:
    expected = scipy_stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    assert paired_tests.non_inferiority(values, margin) == pytest.approx(float(expected), abs=1e-12)


def test_holm_of_the_published_task_suite_leaves_nothing_below_5_percent() -> None:
    # Exact McNemar p of eleven arms of nine tasks against the control, from the numbers of tasks lost.
    lost = [0, 0, 0, 1, 8, 7, 6, 6, 6, 6, 5]
    p = [float(scipy_stats.binomtest(k, k).pvalue) if k else 1.0 for k in lost]
    assert min(multiplicity.holm(p)) == pytest.approx(0.086, abs=5e-4)
    assert min(multiplicity.benjamini_hochberg(p)) == pytest.approx(0.057, abs=5e-4)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_adjusted_p_values_keep_the_order_and_never_shrink(p: list[float]) -> None:
    for adjusted in (multiplicity.holm(p), multiplicity.benjamini_hochberg(p)):
        assert all(a >= b - 1e-12 for a, b in zip(adjusted, p, strict=True))
        assert all(a <= 1 for a in adjusted)
        order = np.argsort(p, kind="stable")
        assert all(np.diff(np.asarray(adjusted)[order]) >= -1e-12)
    assert all(h >= b - 1e-12 for h, b in zip(multiplicity.holm(p), multiplicity.benjamini_hochberg(p), strict=True))


def test_rows_are_adjusted_with_those_they_were_tested_with() -> None:
    p = [0.01, 0.02, 0.03, 0.04, 0.05]
    groups = ["a", "b", "a", "b", "a"]
    rows = [{"p": value, "family": "primary", "group": group} for value, group in zip(p, groups, strict=True)]
    rows += [{"p": value, "family": "other", "group": "a"} for value in p]
    multiplicity.adjust(rows, lambda row: row["group"])
    for group in ("a", "b"):
        members = [row for row in rows[:5] if row["group"] == group]
        assert [row["p_holm"] for row in members] == multiplicity.holm([row["p"] for row in members])
    assert [row["p_bh"] for row in rows[5:]] == multiplicity.benjamini_hochberg(p)
    assert {row["p_bh"] for row in rows[:5]} == {row["p_holm"] for row in rows[5:]} == {None}


def test_holm_steps_down() -> None:
    assert multiplicity.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert multiplicity.holm([]) == multiplicity.benjamini_hochberg([]) == []


def test_interaction_is_zero_where_losses_add_up() -> None:
    assert paired_tests.interaction([0.3, 0.5], [0.6, 0.7], [0.7, 0.8], [1.0, 1.0]) == pytest.approx([0.0, 0.0])
    assert paired_tests.interaction([0.6], [0.6], [0.7], [1.0]) == pytest.approx([0.3])


def test_perplexity_ratio_of_constant_differences_is_exact() -> None:
    reference = np.linspace(1, 3, 1000)
    ratio, interval = paired_tests.perplexity_ratio([reference + math.log(1.1)], [reference], resamples=200)
    assert ratio == pytest.approx(1.1)
    assert interval == pytest.approx((1.1, 1.1))


def test_block_bootstrap_is_wider_than_a_token_bootstrap_where_losses_depend_on_each_other() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=4000)
    correlated = np.convolve(noise, np.ones(32) / 32, mode="same")
    zero = np.zeros(4000)
    _, by_blocks = paired_tests.perplexity_ratio([correlated], [zero], resamples=2000)
    _, by_tokens = paired_tests.perplexity_ratio([correlated], [zero], block=1, resamples=2000)
    assert by_blocks is not None
    assert by_tokens is not None
    assert math.log(by_blocks[1] / by_blocks[0]) > 3 * math.log(by_tokens[1] / by_tokens[0])


def test_block_bootstrap_of_independent_tokens_matches_the_normal_interval() -> None:
    difference = np.random.default_rng(2).normal(0.05, 1.0, size=6400)
    _, interval = paired_tests.perplexity_ratio([difference], [np.zeros(6400)], resamples=4000)
    assert interval is not None
    width = math.log(interval[1] / interval[0])
    assert width == pytest.approx(2 * 1.96 * difference.std() / math.sqrt(6400), rel=0.2)


def test_many_documents_are_resampled_whole() -> None:
    rng = np.random.default_rng(3)
    shifts = rng.normal(0.1, 0.05, size=12)
    documents = [np.full(200, shift) for shift in shifts]
    ratio, interval = paired_tests.perplexity_ratio(documents, [np.zeros(200)] * 12, resamples=4000)
    assert ratio == pytest.approx(math.exp(shifts.mean()))
    assert interval is not None
    assert math.log(interval[1] / interval[0]) == pytest.approx(2 * 1.96 * shifts.std() / math.sqrt(12), rel=0.15)


def test_too_short_a_text_has_no_interval() -> None:
    assert paired_tests.perplexity_ratio([np.ones(100)], [np.zeros(100)]) == (pytest.approx(math.e), None)


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
