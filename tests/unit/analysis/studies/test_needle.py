"""The section of a recall study, recomputed from the trials by other means."""

from __future__ import annotations

import copy
import itertools
import math
import random
from typing import Any

import numpy as np
import pytest
from scipy import stats as scipy_stats

from kvatlas.analysis.statistics.intervals import exact_interval
from kvatlas.analysis.studies import needle
from kvatlas.analysis.studies.recall_contrasts import Pair
from kvatlas.errors import KvatlasError
from kvatlas.files import dump_json
from tests.support import synthetic

TRIALS = synthetic.recall_trials()
SECTION = needle.aggregate(TRIALS)


def row_of(section: dict[str, Any], table: str, **keys: Any) -> dict[str, Any]:
    rows = [row for row in section[table] if all(row[key] == value for key, value in keys.items())]
    assert len(rows) == 1, (keys, len(rows))
    return rows[0]


def trials_of(arm: str, mode: str = "aware") -> list[dict[str, Any]]:
    return [t for t in TRIALS if t["arm"] == arm and t["mode"] == mode]


def recalls(arm: str) -> dict[tuple[int, int], float]:
    clusters: dict[tuple[int, int], list[bool]] = {}
    for t in trials_of(arm):
        clusters.setdefault((t["context"], t["seed"]), []).append(t["hit"])
    return {cluster: float(np.mean(hits)) for cluster, hits in sorted(clusters.items())}


def test_a_row_counts_what_the_trials_say() -> None:
    row = row_of(SECTION, "rows", mode="aware", arm="snapkv-8x")
    trials = trials_of("snapkv-8x")
    assert row["n"] == len(trials) == 40
    assert row["n_clusters"] == 8
    assert row["hits"] == sum(t["hit"] for t in trials)
    assert row["recall"] == pytest.approx(row["hits"] / 40)
    assert row["recall_se_published"] == pytest.approx(float(scipy_stats.sem(list(recalls("snapkv-8x").values()))))
    assert row["recall_ci"][0] < row["recall"] < row["recall_ci"][1]
    assert row["ref_ppl"] == pytest.approx(math.exp(np.mean([x for t in trials for x in t["ref_nlls"]])))
    assert row["ref_ppl_ci"][0] < row["ref_ppl"] < row["ref_ppl_ci"][1]
    assert row["kl"] == pytest.approx(np.mean([x for t in trials for x in t["ref_kls"]]))
    assert row["embed_cosine"] == pytest.approx(np.mean([t["embed_cosine"] for t in trials]))
    assert row["cells"] == [
        f"results/synthetic/cells/needle/smollm2-135m/snapkv-8x/aware-{c}-0.jsonl" for c in (1024, 512)
    ]


def test_sizes_are_mib_per_prompt_and_restate_an_fp32_cache_in_bf16() -> None:
    full = row_of(SECTION, "rows", mode="aware", arm="full")
    evicted = row_of(SECTION, "rows", mode="aware", arm="snapkv-4x")
    assert full["payload_mib"] == pytest.approx(2 * full["full_bf16_mib"])  # the synthetic cache is fp32
    assert full["resident_bf16_mib"] == pytest.approx(full["full_bf16_mib"], rel=1e-3)
    assert full["actual_ratio"] == 1
    slots = [36 + (c - 37) // 4 for c in (512, 1024)]
    assert evicted["actual_ratio"] == pytest.approx((511 + 1023) / sum(slots))
    assert evicted["actual_ratio"] < 4
    assert evicted["saved_share"] == pytest.approx(1 - 1 / evicted["actual_ratio"])
    int8 = row_of(SECTION, "rows", mode="aware", arm="full-int8")
    assert int8["resident_bf16_mib"] == int8["kv_mib"]


def test_by_depth_adds_up_to_the_row() -> None:
    for arm in ("full", "streaming_llm-4x", "snapkv-8x"):
        depths = [r for r in SECTION["by_depth"] if r["arm"] == arm and r["mode"] == "aware"]
        pooled = [r for r in depths if r["context"] == "all"]
        assert [r["depth"] for r in pooled] == [10, 30, 50, 70, 90]
        assert sum(r["hits"] for r in pooled) == row_of(SECTION, "rows", mode="aware", arm=arm)["hits"]
        for r in pooled:
            parts = [q for q in depths if q["depth"] == r["depth"] and q["context"] != "all"]
            assert (sum(q["hits"] for q in parts), sum(q["n"] for q in parts)) == (r["hits"], r["n"])
            assert tuple(r["ci"]) == exact_interval(r["hits"], r["n"])


def test_a_recall_contrast_is_the_paired_cluster_difference() -> None:
    row = row_of(SECTION, "contrasts", mode="aware", arm="snapkv-8x", versus="full", metric="recall")
    first, second = recalls("snapkv-8x"), recalls("full")
    differences = {cluster: first[cluster] - second[cluster] for cluster in first}
    assert row["diff"] == pytest.approx(np.mean(list(differences.values())))
    groups = [[d for (c, _), d in differences.items() if c == context] for context in (512, 1024)]
    se = math.sqrt(sum(np.var(group, ddof=1) / len(group) for group in groups)) / 2
    half = float(scipy_stats.t.ppf(0.975, 6)) * se
    assert row["ci"] == pytest.approx([row["diff"] - half, row["diff"] + half])
    values = list(differences.values())
    flips = [abs(np.dot(signs, values)) for signs in itertools.product((1, -1), repeat=8)]
    assert row["p"] == pytest.approx(np.mean(np.asarray(flips) >= abs(sum(values)) - 1e-12))
    assert row["n_clusters"] == 8
    assert row["family"] == "primary"


def test_a_reference_nll_contrast_compares_cluster_means_of_the_same_tokens() -> None:
    row = row_of(SECTION, "contrasts", mode="aware", arm="h2o-4x", versus="snapkv-4x", metric="ref_nll")
    gaps: dict[tuple[int, int], list[float]] = {}
    for a, b in zip(trials_of("h2o-4x"), trials_of("snapkv-4x"), strict=True):
        gaps.setdefault((a["context"], a["seed"]), []).extend(np.subtract(a["ref_nlls"], b["ref_nlls"]))
    assert row["diff"] == pytest.approx(np.mean([np.mean(values) for values in gaps.values()]))
    assert row["family"] == "other"
    assert row["p_holm"] is None
    assert row["p_bh"] >= row["p"]


def test_every_arm_is_compared_with_full_and_with_snapkv_at_its_own_budget() -> None:
    pairs = {(r["arm"], r["versus"]) for r in SECTION["contrasts"] if r["metric"] == "recall" and r["mode"] == "aware"}
    assert ("h2o-4x", "snapkv-4x") in pairs
    assert ("h2o-8x", "snapkv-8x") in pairs
    assert ("h2o-8x", "snapkv-4x") not in pairs
    assert ("sink_recent-4x-int8", "snapkv-4x") in pairs  # no quantized SnapKV in this grid
    assert {arm for arm, versus in pairs if versus == "full"} == {a.name for a in synthetic.ARMS} - {"full"}


def test_holm_is_applied_within_each_declared_primary_family() -> None:
    for mode, against_full in itertools.product(("aware", "agnostic"), (True, False)):
        family = [
            r
            for r in SECTION["contrasts"]
            if r["family"] == "primary" and r["mode"] == mode and (r["versus"] == "full") == against_full
        ]
        assert {r["metric"] for r in family} == {"recall"}
        smallest = min(family, key=lambda r: r["p"])
        assert smallest["p_holm"] == pytest.approx(min(1.0, smallest["p"] * len(family)))


def test_extra_pairs_are_contrasts_too() -> None:
    pairs = [Pair("snapkv-8x", "snapkv-4x", "recall"), Pair("snapkv-8x", "snapkv-4x", "self_nll", "agnostic")]
    section = needle.aggregate(TRIALS, {"pairs": pairs})
    extra = [r for r in section["contrasts"] if (r["arm"], r["versus"]) == ("snapkv-8x", "snapkv-4x")]
    assert sorted((r["mode"], r["metric"]) for r in extra) == [
        ("agnostic", "recall"),
        ("agnostic", "self_nll"),
        ("aware", "recall"),
    ]
    assert {r["family"] for r in extra} == {"other"}


def test_an_unknown_metric_is_one_clear_line() -> None:
    with pytest.raises(KvatlasError, match="metric 'recal' is not one of"):
        needle.aggregate(TRIALS, {"pairs": [Pair("snapkv-4x", "full", "recal")]})


def test_the_depth_trend_of_a_window_policy_is_its_late_minus_its_early_recall() -> None:
    row = row_of(SECTION, "contrasts", mode="aware", arm="streaming_llm-4x", metric="recall_last_minus_first_depth")
    trials = trials_of("streaming_llm-4x")
    late, early = (np.mean([t["hit"] for t in trials if t["depth"] == depth]) for depth in (90, 10))
    assert row["diff"] == pytest.approx(late - early)
    assert row["diff"] > 0.5


def test_the_interaction_is_zero_when_quantization_changes_nothing() -> None:
    trials = copy.deepcopy(TRIALS)
    source = {(t["arm"], t["mode"], t["id"]): t["hit"] for t in trials}
    for t in trials:
        if t["quantizer"] == "int8":
            t["hit"] = source[t["arm"].removesuffix("-int8"), t["mode"], t["id"]]
    row = row_of(needle.aggregate(trials), "contrasts", mode="aware", metric="recall_interaction")
    assert row["arm"] == "sink_recent-4x-int8"
    assert row["diff"] == 0
    assert row["p"] == 1.0
    assert row["ci"][0] < 0 < row["ci"][1]


def test_a_quantized_arm_under_a_protection_is_compared_with_its_twins_under_the_same_protection() -> None:
    twins = ("sink_recent-4x", "sink_recent-4x-int8", "snapkv-4x")
    fair = [t | {"arm": f"{t['arm']}-fair", "protection": "fair"} for t in TRIALS if t["arm"] in twins]
    section = needle.aggregate([*TRIALS, *fair])
    (row,) = [
        row
        for row in section["contrasts"]
        if (row["arm"], row["mode"], row["metric"]) == ("sink_recent-4x-int8-fair", "aware", "recall_interaction")
    ]
    plain = row_of(section, "contrasts", mode="aware", metric="recall_interaction", arm="sink_recent-4x-int8")
    assert {key: row[key] for key in ("versus", "diff", "ci", "p")} == {
        key: plain[key] for key in ("versus", "diff", "ci", "p")
    }
    against = {row["versus"] for row in section["contrasts"] if row["arm"] == "sink_recent-4x-int8-fair"}
    assert against == {"full", "snapkv-4x-fair", "additive", "sink_recent-4x-int8-fair"}


def test_a_gate_needs_a_full_cache_that_recalls_and_a_floor_that_does_not() -> None:
    assert all(gate["passed"] and gate["reason"] == "" for gate in SECTION["gates"])
    assert {gate["context"] for gate in SECTION["gates"]} == {512, 1024, "all"}
    weak = [{**t, "hit": t["hit"] and t["context"] == 512} if t["arm"] == "full" else t for t in TRIALS]
    gates = needle.aggregate(weak)["gates"]
    assert {g["context"]: g["passed"] for g in gates if g["mode"] == "aware"} == {512: True, 1024: False, "all": False}
    guessed = [{**t, "hit": True} if t["mode"] == "no_context" else t for t in TRIALS]
    assert "100.0% are recalled without the context" in needle.aggregate(guessed)["gates"][0]["reason"]
    without = needle.aggregate([t for t in TRIALS if t["mode"] != "no_context"])
    assert {g["reason"] for g in without["gates"]} == {"the question without its context was not run"}
    assert not row_of(without, "rows", mode="aware", arm="full")["gate_passed"]


def test_exactly_80_percent_does_not_pass_the_gate() -> None:
    trials = [{**t, "hit": t["depth"] != 10} if (t["arm"], t["mode"]) == ("full", "aware") else t for t in TRIALS]
    gate = row_of(needle.aggregate(trials), "gates", mode="aware", context="all")
    assert gate["full_recall"] == 0.8
    assert not gate["passed"]


def test_hits_given_a_retained_needle_are_exact_binomial() -> None:
    row = row_of(SECTION, "rows", mode="aware", arm="streaming_llm-4x")["hit_given_retained"]
    kept = [t for t in trials_of("streaming_llm-4x") if t["needle_retained"] == 1.0]
    assert (row["k"], row["n"]) == (sum(t["hit"] for t in kept), len(kept))
    assert tuple(row["ci"]) == exact_interval(row["k"], row["n"])
    assert row_of(SECTION, "rows", mode="no_context", arm="full")["hit_given_retained"] == {"k": 0, "n": 0, "ci": None}


def test_retention_bins_hold_every_trial_once() -> None:
    for arm in ("full", "snapkv-4x", "streaming_llm-8x"):
        bins = [r for r in SECTION["retention"] if r["arm"] == arm and r["mode"] == "aware"]
        assert sum(r["n"] for r in bins) == 40
        assert sum(r["hits"] for r in bins) == row_of(SECTION, "rows", mode="aware", arm=arm)["hits"]
        assert all(r["bin"][0] <= r["retained"] <= r["bin"][1] for r in bins)


def test_recall_given_the_full_caches_hits_leaves_its_misses_out() -> None:
    full = {(t["context"], t["seed"], t["depth"]) for t in trials_of("full") if t["hit"]}
    trials = [t for t in trials_of("snapkv-8x") if (t["context"], t["seed"], t["depth"]) in full]
    row = row_of(SECTION, "rows", mode="aware", arm="snapkv-8x")["recall_given_full"]
    assert (row["k"], row["n"]) == (sum(t["hit"] for t in trials), len(trials))


def test_the_noise_floor_counts_what_a_repeat_of_the_full_cache_changes() -> None:
    assert SECTION["noise_floor"] is None
    repeat = [{**t, "arm": "full_repeat"} for t in TRIALS if t["arm"] == "full" and t["mode"] == "aware"]
    repeat[0] = {**repeat[0], "hit": not repeat[0]["hit"], "output_ids": [1]}
    (row,) = needle.aggregate([*TRIALS, *repeat])["noise_floor"]["rows"]
    assert (row["arm"], row["n"], row["flips"], row["outputs_changed"]) == ("full_repeat", 40, 1, 1)
    assert row["ref_ppl_ratio"] == pytest.approx(1.0)
    assert row["ref_nll_gap_max"] == 0


@pytest.mark.parametrize(
    ("seeds", "headline", "size"),
    [
        (4, (), "descriptive"),
        (5, (), "below minimum"),
        (20, (), "sufficient"),
        (20, ("smollm2-135m",), "below minimum"),
    ],
)
def test_the_grid_says_whether_the_sample_is_large_enough(seeds: int, headline: tuple[str, ...], size: str) -> None:
    trials = synthetic.recall_trials(arms=synthetic.ARMS[:1], seeds=seeds, modes=("aware",))
    grid = needle.aggregate(trials, {"headline": headline})["grid"]
    row = next(r for r in grid["rows"] if r["mode"] == "aware")
    assert row["size"] == size
    assert grid["descriptive"] == (size == "descriptive")
    assert (row["n_clusters"], row["clusters_per_context"], row["depths"]) == (2 * seeds, seeds, [10, 30, 50, 70, 90])


def test_arms_that_saw_other_prompts_are_refused() -> None:
    holes = [t for t in TRIALS if not (t["arm"] == "h2o-4x" and t["mode"] == "aware" and t["seed"] == 3)]
    with pytest.raises(KvatlasError, match="mode aware: arm h2o-4x lacks 10 of 40 prompts"):
        needle.aggregate(holes)
    with pytest.raises(KvatlasError, match="at least one trial"):
        needle.aggregate([])


def test_the_section_does_not_depend_on_the_order_of_the_trials_and_is_valid_json() -> None:
    shuffled = list(TRIALS)
    random.Random(0).shuffle(shuffled)
    assert dump_json(needle.aggregate(shuffled)) == dump_json(SECTION)


def test_one_seed_gives_rows_but_claims_nothing() -> None:
    trials = synthetic.recall_trials(arms=synthetic.ARMS[:4], seeds=1, contexts=(512,), modes=("aware",))
    section = needle.aggregate(trials)
    row = row_of(section, "rows", mode="aware", arm="full")
    assert row["recall_ci"] == [0.0, 1.0]
    assert row["ref_ppl_ci"] is None
    assert {r["p"] for r in section["contrasts"]} == {1.0}


def test_passkey_trials_are_summed_up_by_the_same_code() -> None:
    trials = synthetic.recall_trials(study="passkey", arms=synthetic.ARMS[:4], contexts=(2048,), seeds=3)
    section = needle.aggregate(trials)
    assert {gate["study"] for gate in section["gates"]} == {"passkey"}
    assert row_of(section, "rows", mode="aware", arm="full")["n_clusters"] == 3


def test_an_arm_run_at_one_context_is_compared_on_that_context_alone():
    trials = synthetic.recall_trials()
    contexts = sorted({trial["context"] for trial in trials})
    assert len(contexts) > 1
    partial = [
        trial for trial in trials if not (trial["arm"].startswith("snapkv-") and trial["context"] == contexts[-1])
    ]
    section = needle.aggregate(partial, {})
    row = next(row for row in section["contrasts"] if row["arm"] == "snapkv-4x" and row["versus"] == "full")
    whole = next(
        row
        for row in needle.aggregate([t for t in trials if t["context"] != contexts[-1]], {})["contrasts"]
        if row["arm"] == "snapkv-4x" and row["versus"] == "full" and row["metric"] == "recall"
    )
    assert row["metric"] == "recall"
    assert (row["diff"], row["n_clusters"], row["ci"]) == (whole["diff"], whole["n_clusters"], whole["ci"])
