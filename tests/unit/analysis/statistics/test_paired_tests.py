"""Paired tests against scipy and brute force."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from kvatlas.analysis.statistics import paired_tests


def brute_force_sign_flip(differences: list[float]) -> float:
    observed = abs(sum(differences))
    sums = [
        abs(sum(sign * d for sign, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return float(np.mean([total >= observed - 1e-12 for total in sums]))


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=30).filter(lambda v: float(np.std(v)) > 1e-6))
@settings(max_examples=50, deadline=None)
def test_paired_interval_of_one_context_is_scipys(differences: list[float]) -> None:
    expected = scipy_stats.ttest_1samp(differences, 0).confidence_interval(0.95)
    assert paired_tests.paired_difference(differences).ci == pytest.approx((expected.low, expected.high))


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
    ratio, interval = paired_tests.perplexity_ratio([np.ones(100)], [np.zeros(100)])
    assert ratio == pytest.approx(math.e)
    assert interval is None
