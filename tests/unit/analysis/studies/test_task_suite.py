"""The task suite's table: counts, gates, paired tests and recommendations, on trials with known answers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvatlas.analysis.claims.claim_file import load
from kvatlas.analysis.claims.judge import evaluate, pairs
from kvatlas.analysis.studies import task_suite
from kvatlas.analysis.studies.suite_contrasts import TREND
from kvatlas.errors import KvatlasError
from tests.support.places import CLAIMS_FILE
from tests.support.suite import passage, trials_of

ALWAYS = lambda family, depth, instance: True  # noqa: E731
NEVER = lambda family, depth, instance: False  # noqa: E731
LATE = lambda family, depth, instance: depth in (65, 95)  # noqa: E731


@pytest.fixture(scope="module")
def section() -> dict[str, Any]:
    base = [2 + math.sin(step) for step in range(320)]
    trials = [
        *trials_of("full", ALWAYS),
        *trials_of("full", NEVER, mode="no_context"),
        *trials_of("full-int8", ALWAYS, share=0.265625),
        *trials_of("full-int2", NEVER, share=0.078125),
        *trials_of("sliding_window-50pct", LATE, share=0.5),
        *trials_of("random-50pct", lambda family, depth, instance: instance % 2, share=0.5),
        *trials_of("sliding_window-50pct-int8", LATE, share=0.13),
    ]
    for arm, single, online in (("full", 0.0, 0.0), ("sliding_window-50pct", 0.0, 0.5), ("full-int2", 3.0, 3.0)):
        trials.append(passage(arm, "single", [value + single for value in base]))
        trials.append(passage(arm, "online", [value + online for value in base]))
    return task_suite.aggregate(trials)


def row(section: dict, arm: str) -> dict[str, Any]:
    return next(row for row in section["rows"] if row["arm"] == arm)


def contrast(section: dict, arm: str, versus: str, metric: str) -> dict[str, Any]:
    keys = ("arm", "versus", "metric")
    return next(c for c in section["contrasts"] if tuple(c[key] for key in keys) == (arm, versus, metric))


def test_accuracy_is_told_for_the_suite_each_family_and_each_depth(section):
    late = row(section, "sliding_window-50pct")
    assert late["accuracy"] == pytest.approx(2 / 7)
    assert late["hits"] == 24
    assert (late["accuracy_needle"], late["accuracy_summary"]) == (0.5, 0.0)
    assert (late["accuracy_needle_d5"], late["accuracy_needle_d95"]) == (0.0, 1.0)
    depths = [r["hits"] for r in section["by_depth"] if r["arm"] == "sliding_window-50pct"]
    assert depths == [0, 0, 12, 12]
    assert row(section, "full")["accuracy_ci"][0] < 1.0


def test_bytes_are_shares_of_the_fp32_control_and_of_the_bf16_cache(section):
    int8 = row(section, "full-int8")
    assert int8["kv_share"] == pytest.approx(8.5 / 32, abs=1e-4)
    assert int8["kv_kib"] == pytest.approx(200 * 8.5 / 32, abs=0.01)
    assert row(section, "full")["resident_bf16_mib"] == row(section, "full")["full_bf16_mib"]


def test_losses_are_paired_by_instance_and_told_whether_they_are_resolved(section):
    loss = contrast(section, "full-int2", "full", "accuracy")
    assert loss["diff"] == -1
    assert loss["resolved"]
    assert loss["p_holm"] == pytest.approx(2**-11 * 4, rel=0.5)
    same = contrast(section, "full-int8", "full", "accuracy")
    assert (same["diff"], same["p"], same["resolved"]) == (0, 1.0, False)
    # 84 prompts without a flip still allow a loss of some points.
    assert 0 < same["p_non_inferior"] < 0.05
    assert same["ci"][0] < 0 < same["ci"][1]


def test_the_trend_over_depth_and_random_eviction_are_compared(section):
    assert contrast(section, "sliding_window-50pct", "sliding_window-50pct", TREND)["diff"] == 1
    assert contrast(section, "sliding_window-50pct", "random-50pct", "accuracy_needle")["diff"] == pytest.approx(0)


def test_the_interaction_is_zero_where_losses_add_up(section):
    entry = contrast(section, "sliding_window-50pct-int8", "additive", "accuracy_interaction")
    assert entry["diff"] == pytest.approx(0)
    assert entry["means"]["full"] == 1.0


def test_a_quantized_arm_under_a_protection_finds_its_twins_under_the_same_protection():
    def late(family, depth, instance):
        return family != "needle" or depth == 95

    plain = ("full", "full-int8", "random-50pct", "snapkv-50pct", "snapkv-50pct-int8")
    trials = [trial for arm in plain for trial in trials_of(arm, late if "-50pct" in arm else lambda *_: True)]
    fair = [
        trial | {"arm": f"{trial['arm']}-fair", "protection": "fair"} for trial in trials if trial["budget"] != "none"
    ]
    section = task_suite.aggregate([*trials, *fair])
    arm = "snapkv-50pct-int8-fair"
    assert contrast(section, arm, "additive", "accuracy_interaction")["diff"] == pytest.approx(0)
    assert row(section, arm)["protection"] == "fair"
    against = {row["versus"] for row in section["contrasts"] if row["arm"] == arm and row["metric"] == "accuracy"}
    assert against == {"full", "snapkv-50pct-fair"}


def test_perplexity_is_compared_in_each_of_its_ways(section):
    blind = contrast(section, "sliding_window-50pct", "full", "single_forward_nll")
    assert (blind["diff"], blind["ci"]) == (0, [0, 0])
    assert contrast(section, "sliding_window-50pct", "full", "online_nll")["diff"] == pytest.approx(0.5)
    assert row(section, "full-int2")["single_forward_ppl"] > 15 * row(section, "full")["single_forward_ppl"]


def test_a_family_that_the_full_cache_does_not_master_fails_its_gate():
    weak = lambda family, depth, instance: family != "summary"  # noqa: E731
    trials = [
        *trials_of("full", weak),
        *trials_of("full", lambda family, depth, instance: family == "instruction", mode="no_context"),
        *trials_of("full-int8", weak),
    ]
    section = task_suite.aggregate(trials)
    passed = {gate["family"]: gate["passed"] for gate in section["gates"]}
    assert passed == {"needle": True, "multi_turn": True, "instruction": False, "summary": False, "all": False}
    assert not contrast(section, "full-int8", "full", "accuracy_summary")["gate_passed"]
    assert contrast(section, "full-int8", "full", "accuracy_needle")["gate_passed"]


def test_recommendations_are_the_smallest_arms_that_pass_their_test(section):
    large = task_suite.aggregate(
        [
            *trials_of("full", ALWAYS, instances=80),
            *trials_of("full", NEVER, instances=80, mode="no_context"),
            *trials_of("full-int8", ALWAYS, instances=80, share=0.265625),
        ]
    )
    best = {r["workload"]: r for r in large["recommendations"]}["anything"]
    assert best["arm"] == "full-int8"
    assert best["share"] == pytest.approx(2 * 8.5 / 32, abs=1e-3)
    chosen = {r["workload"]: r for r in section["recommendations"]}
    assert chosen["recall from anywhere in a bounded cache"]["arm"] is None
    assert chosen["recall from anywhere in a bounded cache"]["candidates"] == 3
    assert chosen["streaming without recall"]["arm"] is None


def test_nothing_is_recommended_from_a_handful_of_instances():
    trials = [
        *trials_of("full", ALWAYS, instances=2),
        *trials_of("full", NEVER, instances=2, mode="no_context"),
        *trials_of("full-int8", ALWAYS, instances=2, share=0.27),
    ]
    section = task_suite.aggregate(trials)
    assert {r["arm"] for r in section["recommendations"]} == {None}
    assert section["grid"]["descriptive"]


def test_arms_that_saw_other_prompts_are_refused():
    with pytest.raises(KvatlasError, match="did not see the prompts"):
        task_suite.aggregate([*trials_of("full", ALWAYS), *trials_of("full-int8", ALWAYS, instances=3)])
    with pytest.raises(KvatlasError, match="no full cache"):
        task_suite.aggregate(trials_of("full-int8", ALWAYS))
    with pytest.raises(KvatlasError, match="at least one trial"):
        task_suite.aggregate([])


def test_the_suite_s_claims_find_their_contrasts(section):
    claims = [claim for claim in load(CLAIMS_FILE) if claim.study == "task_suite"]
    wanted = pairs(claims, "task_suite", {row["arm"] for row in section["rows"]}, task_suite.METRICS)
    assert wanted
    verdicts = {row["id"]: row for row in evaluate(claims, {"studies": {"task_suite": section}})}
    assert verdicts["suite-int2-is-past-the-useful-range"]["verdict"] == "supported"
    assert verdicts["suite-int2-recalls-no-needles"]["verdict"] in ("supported", "not resolved")
    assert verdicts["suite-single-forward-perplexity-is-blind-to-eviction"]["verdict"] == "not run"
