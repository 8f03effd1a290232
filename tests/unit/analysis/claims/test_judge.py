"""The verdict of one predicate, and the verdicts of a whole run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from kvatlas.analysis.claims import judge, verdicts
from kvatlas.analysis.statistics import multiplicity, paired_tests
from kvatlas.analysis.studies import needle
from tests.support import synthetic
from tests.support.places import CLAIMS_FILE

CLAIMS = judge.load(CLAIMS_FILE)

MODEL = "smollm2-135m"


def contrast(differences: list[float], *, prompts: int | None = None, **keys: Any) -> dict[str, Any]:
    paired = paired_tests.paired_difference(differences, prompts=prompts)
    row = {"model": MODEL, "arm": "a-4x", "versus": "b-4x", "metric": "recall", "mode": "aware", "gate_passed": True}
    numbers = {"diff": paired.diff, "ci": paired.ci, "p": paired.p, "se": paired.se, "df": paired.df}
    return row | numbers | {"n_clusters": paired.n_clusters} | keys


def claim(**keys: Any) -> judge.Claim:
    base = {"id": "c", "sentence": "A beats B.", "source": "own", "source_title": "this project", "study": "needle"}
    rest = {"mode": "aware", "metric": "recall", "test": "superiority", "contrasts": (("a-4x", "b-4x"),)}
    return judge.Claim(**(base | rest | keys))


def results(contrasts: list[dict[str, Any]], rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    names = ("a-4x", "b-4x", "full")
    default = [{"model": MODEL, "mode": "aware", "arm": arm, "gate_passed": True} for arm in names]
    return {"studies": {"needle": {"rows": rows or default, "contrasts": contrasts}}}


def verdict(item: judge.Claim, *contrasts: dict[str, Any]) -> dict[str, Any]:
    (row,) = judge.evaluate([item], results(list(contrasts)))
    return row


def spread(mean: float, sd: float, n: int = 20) -> list[float]:
    """n numbers with exactly this mean and sample sd."""
    values = np.random.default_rng(0).normal(size=n)
    return list(mean + sd * (values - values.mean()) / values.std(ddof=1))


@pytest.mark.parametrize(
    ("test", "margin", "mean", "expected"),
    [
        ("superiority", 0.0, 0.3, "supported"),
        ("superiority", 0.0, -0.3, "contradicted"),
        ("superiority", 0.0, 0.01, "not resolved"),
        ("superiority", 0.5, 0.3, "contradicted"),
        ("superiority", 0.5, 0.7, "supported"),
        ("superiority", 0.5, 0.52, "not resolved"),
        ("non_inferiority", 0.05, 0.0, "not resolved"),
        ("non_inferiority", 0.2, 0.0, "supported"),
        ("non_inferiority", 0.05, -0.3, "contradicted"),
        ("equivalence", 0.2, 0.0, "supported"),
        ("equivalence", 0.01, 0.0, "not resolved"),
        ("equivalence", 0.1, 0.4, "contradicted"),
        ("difference", 0.2, 0.0, "contradicted"),
        ("difference", 0.05, -0.3, "supported"),
        ("difference", 0.01, 0.02, "not resolved"),
    ],
)
@pytest.mark.parametrize("direction", ["greater", "less"])
def test_a_verdict_needs_an_interval_clear_of_the_margin(
    test: str, margin: float, mean: float, expected: str, direction: str
) -> None:
    sign = 1 if direction == "greater" else -1
    row = verdict(claim(test=test, margin=margin, direction=direction), contrast(spread(sign * mean, 0.2)))
    assert row["verdict"] == expected
    assert row["effect"] == pytest.approx(sign * mean)
    assert (row["n_needed"] is not None) == (expected == "not resolved" and mean not in (-margin, margin))


def test_non_inferiority_agrees_with_scipys_one_sided_test() -> None:
    differences = spread(-0.02, 0.1)
    row = verdict(claim(test="non_inferiority", margin=0.05), contrast(differences))
    expected = scipy_stats.ttest_1samp(differences, -0.05, alternative="greater").pvalue
    assert row["p"] == pytest.approx(float(expected))


def test_no_flips_do_not_show_non_inferiority_in_a_small_sample() -> None:
    small = contrast([0.0] * 9, prompts=9)
    assert verdict(claim(test="non_inferiority", margin=0.05), small)["verdict"] == "not resolved"
    assert verdict(claim(test="non_inferiority", margin=0.24), small)["verdict"] == "supported"
    large = contrast([0.0] * 80, prompts=400)
    assert verdict(claim(test="non_inferiority", margin=0.05), large)["verdict"] == "supported"


def test_the_clusters_that_would_resolve_a_claim_do_resolve_it_if_the_effect_is_real() -> None:
    needed = verdict(claim(), contrast(spread(0.05, 0.2)))["n_needed"]
    assert needed > 20
    again = verdict(claim(), contrast(spread(0.05, 0.2, needed)))
    assert again["verdict"] == "supported"
    no_flips = verdict(claim(test="non_inferiority", margin=0.05), contrast([0.0] * 9, prompts=9))["n_needed"]
    at_needed = contrast([0.0] * no_flips, prompts=no_flips)
    assert verdict(claim(test="non_inferiority", margin=0.05), at_needed)["verdict"] == "supported"
    fewer = contrast([0.0] * (no_flips - 1), prompts=no_flips - 1)
    assert verdict(claim(test="non_inferiority", margin=0.05), fewer)["verdict"] == "not resolved"


def test_a_section_without_se_and_df_gets_the_same_verdict_from_its_interval() -> None:
    full = contrast(spread(-0.02, 0.1))
    bare = {key: value for key, value in full.items() if key not in ("se", "df")}
    item = claim(test="non_inferiority", margin=0.05)
    assert verdict(item, bare)["p"] == pytest.approx(verdict(item, full)["p"])


def test_all_parts_must_hold_and_one_contradicted_part_is_enough() -> None:
    item = claim(contrasts=(("a-4x", "b-4x"), ("a-4x", "full")))
    good, weak, bad = spread(0.3, 0.2), spread(0.01, 0.2), spread(-0.3, 0.2)
    other = {"versus": "full"}
    assert verdict(item, contrast(good), contrast(good, **other))["verdict"] == "supported"
    resolved = verdict(item, contrast(good), contrast(weak, **other))
    assert resolved["verdict"] == "not resolved"
    assert resolved["decided_by"] == "a-4x vs full"
    contradicted = verdict(item, contrast(good), contrast(bad, **other))
    assert contradicted["verdict"] == "contradicted"
    assert contradicted["decided_by"] == "a-4x vs full"
    assert [part["name"] for part in contradicted["parts"]] == ["a-4x vs b-4x", "a-4x vs full"]


def test_primary_claims_share_holm_and_secondary_ones_benjamini_hochberg() -> None:
    rows = [contrast(spread(mean, 0.2), versus=f"v{i}") for i, mean in enumerate((0.08, 0.12, 0.2))]
    arms = [{"model": MODEL, "mode": "aware", "arm": arm} for arm in ("a-4x", "v0", "v1", "v2")]
    for family, correct in (("primary", multiplicity.holm), ("secondary", multiplicity.benjamini_hochberg)):
        items = [claim(id=f"c{i}", contrasts=(("a-4x", f"v{i}"),), family=family) for i in range(3)]
        judged = judge.evaluate(items, results(rows, arms))
        assert [r["p_adjusted"] for r in judged] == pytest.approx(correct([r["p"] for r in judged]))


def test_a_claim_can_lose_its_verdict_to_the_correction() -> None:
    borderline = contrast(spread(0.105, 0.2))
    assert borderline["p"] < 0.05
    assert verdict(claim(family="primary"), borderline)["verdict"] == "supported"
    null = [contrast(spread(0.0, 0.2), versus=f"v{i}") for i in range(3)]
    items = [claim(family="primary")]
    items += [claim(id=f"c{i}", family="primary", contrasts=(("a-4x", f"v{i}"),)) for i in range(3)]
    arms = [{"model": MODEL, "mode": "aware", "arm": arm} for arm in ("a-4x", "b-4x", "v0", "v1", "v2")]
    first = judge.evaluate(items, results([borderline, *null], arms))[0]
    assert first["p_adjusted"] > 0.05
    assert first["verdict"] == "not resolved"
    assert first["n_needed"] > first["n_clusters"]


@pytest.mark.parametrize(
    ("ci", "expected"), [([0.0, 0.04], "supported"), ([0.06, 0.2], "contradicted"), ([0.0, 0.1], "not resolved")]
)
def test_a_level_is_judged_by_its_interval(ci: list[float], expected: str) -> None:
    row = {"model": MODEL, "mode": "aware", "arm": "a-4x", "recall": ci[0], "recall_ci": ci, "n_clusters": 12}
    item = claim(test="level", direction="less", margin=0.05, contrasts=(("a-4x", None),))
    (judged,) = judge.evaluate([item], results([], [row]))
    assert judged["verdict"] == expected
    assert judged["p"] is None


def test_a_value_is_compared_with_its_target() -> None:
    item = claim(
        study="q", mode=None, metric="bits_per_value", test="value", target=8.5, margin=0.01, where=(("head_dim", 64),)
    )
    item = judge.Claim(**{**vars(item), "contrasts": (("int8", None),)})
    row = {"model": MODEL, "arm": "int8", "bits_per_value": 8.5, "head_dim": 64}
    outcomes = []
    for change in ({}, {"bits_per_value": 8.25}, {"head_dim": 128}):
        (judged,) = judge.evaluate([item], {"studies": {"q": {"rows": [row | change]}}})
        outcomes.append(judged["verdict"])
    assert outcomes == ["supported", "contradicted", "not run"]


def test_a_claim_that_the_run_does_not_cover_says_why() -> None:
    row = contrast(spread(0.3, 0.2))
    cases = {
        "study passkey was not run": claim(study="passkey"),
        f"model {MODEL} was not run in mode agnostic": claim(mode="agnostic"),
        "model qwen2.5-3b-instruct was not run in mode aware": claim(models=("qwen2.5-3b-instruct",)),
        "not in this run: a-4x vs c-4x": claim(contrasts=(("a-4x", "b-4x"), ("a-4x", "c-4x"))),
        "no budget at which all its arms were run": claim(contrasts=(("c-{budget}", "b-{budget}"),), budgets=("any",)),
    }
    for reason, item in cases.items():
        judged = verdict(item, row)
        assert (judged["verdict"], judged["reason"]) == ("not run", reason)
        assert judged["effect"] is None
    (nothing,) = judge.evaluate([claim()], {"studies": {}})
    assert (nothing["verdict"], nothing["model"]) == ("not run", None)


def test_a_task_that_is_not_past_its_gate_resolves_nothing_about_recall() -> None:
    gated = contrast(spread(0.3, 0.2), gate_passed=False)
    judged = verdict(claim(), gated)
    assert (judged["verdict"], judged["reason"]) == ("not resolved", "the task is not past its gate")
    nll = contrast(spread(0.3, 0.2), metric="ref_nll")
    assert verdict(claim(metric="ref_nll"), nll)["verdict"] == "supported"


def test_few_clusters_are_called_descriptive() -> None:
    assert verdict(claim(), contrast(spread(0.3, 0.1, 9)))["descriptive"]
    assert not verdict(claim(), contrast(spread(0.3, 0.1, 10)))["descriptive"]


def test_every_claim_on_the_needle_study_uses_a_metric_that_it_has() -> None:
    trials = synthetic.recall_trials()
    arms = {t["arm"] for t in trials}
    section = needle.aggregate(trials, {"pairs": judge.pairs(CLAIMS, "needle", arms)})
    judged = judge.evaluate(CLAIMS, {"studies": {"needle": section}})
    missing = {row["id"]: row["reason"] for row in judged if row["study"] == "needle" and row["verdict"] == "not run"}
    assert missing == {
        "proportional-attention-lowers-reference-perplexity": "no budget at which all its arms were run",
        "needle-8-bit-is-close-to-free": "not in this run: full-fp8 vs full",
        "reindexed-streaming-llm-recalls-only-late-needles": "no budget at which all its arms were run",
    }
    assert {row["verdict"] for row in judged if row["study"] != "needle"} == {"not run"}
    assert {row["verdict"] for row in judged} <= {"supported", "contradicted", "not resolved", "not run"}


def test_verdicts_on_synthetic_trials_follow_how_they_were_made() -> None:
    trials = synthetic.recall_trials(seeds=20, modes=("aware",))
    section = needle.aggregate(trials, {"pairs": judge.pairs(CLAIMS, "needle", {t["arm"] for t in trials})})
    by_id = {row["id"]: row for row in judge.evaluate(CLAIMS, {"studies": {"needle": section}})}
    for name in (
        "snapkv-beats-pure-clustering",
        "snapkv-beats-random",
        "pure-clustering-recalls-nothing",
        "pre-rope-lowers-reference-perplexity",
        "reference-perplexity-grows-with-the-ratio",
        "streaming-llm-recalls-only-late-needles",
    ):
        assert by_id[name]["verdict"] == "supported", by_id[name]
    assert by_id["hybrid-below-snapkv"]["verdict"] == "not resolved"
    assert by_id["hybrid-below-snapkv"]["n_needed"] is None or by_id["hybrid-below-snapkv"]["n_needed"] > 40
    assert by_id["full-cache-loses-early-needles"]["verdict"] != "supported"


def test_verdict_words_are_those_of_the_report() -> None:
    words = (verdicts.SUPPORTED, verdicts.CONTRADICTED, verdicts.NOT_RESOLVED, verdicts.NOT_RUN)
    assert words == ("supported", "contradicted", "not resolved", "not run")


@pytest.mark.parametrize(("needle", "overall", "verdict"), [(False, True, "not resolved"), (True, False, "supported")])
def test_a_level_of_one_family_of_tasks_is_held_to_that_family_s_gate(
    needle: bool, overall: bool, verdict: str
) -> None:
    claim = next(claim for claim in CLAIMS if claim.id == "suite-int2-recalls-no-needles")
    arm = {
        "model": "m",
        "arm": "full-int2",
        "accuracy_needle": 0.0,
        "accuracy_needle_ci": [0.0, 0.02],
        "n_clusters": 30,
    }
    gates = {"gate_passed": overall, "family_gates_passed": {"needle": needle}}
    (row,) = judge.evaluate([claim], {"studies": {"task_suite": {"rows": [arm | gates], "contrasts": []}}})
    assert row["verdict"] == verdict
