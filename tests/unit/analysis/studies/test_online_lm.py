"""The online study's section: paired ratios with intervals, what is primary, and streams that cannot be compared."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest

from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims import judge
from kvatlas.analysis.studies import online_lm, streams
from kvatlas.errors import KvatlasError
from tests.support.places import CLAIMS_FILE
from tests.support.streams import ONLINE_ARMS, online_trials

ARMS = ["full", *(f"{m}-{b}slots{'' if s == 'base' else '-fair'}" for b in (256, 512) for m, s, _ in ONLINE_ARMS)]


@pytest.fixture(scope="module")
def trials() -> list[dict[str, Any]]:
    return online_trials(protocols=("online", "prefill", "single"), blocks=(1,))


@pytest.fixture(scope="module")
def section(trials: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = judge.pairs(claim_files.load(CLAIMS_FILE), "online_lm", ARMS, online_lm.METRICS)
    return online_lm.aggregate(trials, {"pairs": pairs})


def row(section: dict[str, Any], arm: str, name: str = "rows") -> dict[str, Any]:
    return next(entry for entry in section[name] if entry["arm"] == arm)


def contrast(section: dict[str, Any], arm: str, versus: str, metric: str) -> dict[str, Any]:
    return next(c for c in section["contrasts"] if (c["arm"], c["versus"], c["metric"]) == (arm, versus, metric))


def test_every_arm_has_a_row_with_ppl_over_all_tokens_and_after_the_budget_binds(section, trials):
    assert sorted(entry["arm"] for entry in section["rows"]) == sorted(ARMS)
    trial = next(t for t in trials if t["arm"] == "keydiff-256slots" and t["block"] == 32)
    entry = row(section, "keydiff-256slots")
    assert entry["ppl"] == pytest.approx(math.exp(np.mean(trial["nlls"])))
    assert entry["post_ppl"] == pytest.approx(math.exp(np.mean(trial["nlls"][288:])))
    assert entry["accuracy"] == pytest.approx(np.mean(trial["hits"]))
    assert entry["post_from"] == 288
    assert entry["ppl_ci"][0] < entry["ppl"] < entry["ppl_ci"][1]
    full = row(section, "full")
    assert full["post_ppl"] is full["post_ratio_full"] is None


def test_ratios_to_the_full_cache_compare_the_same_tokens(section, trials):
    full, arm = (
        next(t for t in trials if t["arm"] == name and t["block"] == 32) for name in ("full", "l2norm-512slots")
    )
    entry = row(section, "l2norm-512slots")
    start = arm["first_compressed"]
    expected = math.exp(np.mean(arm["nlls"][start:]) - np.mean(full["nlls"][start:]))
    assert entry["post_ratio_full"] == pytest.approx(expected)
    low, high = entry["post_ratio_full_ci"]
    assert low < expected < high
    # Tokens before the budget binds are equal, so they pull the ratio over all tokens towards 1.
    assert 1 < entry["ratio_full"] < entry["post_ratio_full"]


def test_bootstrap_intervals_cover_the_true_loss_of_a_stream():
    covered = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        shared = rng.gamma(2.0, 1.6, size=1024)
        noise = np.convolve(rng.normal(0, 0.4, size=1024 + 15), np.ones(16) / 4, mode="valid")
        common = {"first_prediction": 0, "first_compressed": 0}
        arm = {"nlls": shared + 0.2 + noise, "hits": [], **common}
        low, high = streams.contrast(arm, {"nlls": shared, "hits": [], **common}, "post_nll", 0)["ci"]
        covered += low <= 0.2 <= high
    assert covered >= 50


def test_the_primary_family_is_sink_and_recent_at_the_same_budget_after_it_binds(section):
    primary = [c for c in section["contrasts"] if c["family"] == "primary"]
    assert {c["metric"] for c in primary} == {"post_nll"}
    assert {(c["arm"].split("-")[1], c["versus"]) for c in primary} == {
        ("256slots", "sink_recent-256slots-fair"),
        ("512slots", "sink_recent-512slots-fair"),
    }
    assert len(primary) == 2 * (len(ONLINE_ARMS) - 1)
    assert all(c["p_holm"] >= c["p"] and c["p_bh"] is None for c in primary)
    verdicts = {c["arm"]: c["verdict"] for c in primary}
    assert verdicts["snapkv-256slots-fair"] == "better"
    assert verdicts["high_l2-256slots"] == verdicts["keydiff-256slots-fair"] == "worse"
    assert verdicts["random-256slots-fair"] == "not resolved"


def test_claims_get_their_contrasts_and_verdicts(section):
    entry = contrast(section, "snapkv-256slots", "keydiff-256slots", "nll")
    assert entry["diff"] < 0
    assert entry["ci"][1] < 0
    results = {"studies": {"online_lm": section}}
    judged = judge.evaluate(claim_files.load(CLAIMS_FILE), results)
    verdicts = {c["id"]: c["verdict"] for c in judged if c["study"] == "online_lm"}
    assert verdicts["online-snapkv-is-closest-to-full"] == "supported"
    assert verdicts["online-perplexity-sees-eviction"] == "supported"
    assert verdicts["online-high-l2-is-worst"] == "supported"
    assert verdicts["online-key-geometry-beats-sink-recent"] == "not run"
    assert all(c["n_clusters"] for c in judged if c["study"] == "online_lm" and c["verdict"] != "not run")


def test_identical_predictions_before_binding_are_checked(section, trials):
    assert section["checks"] == [{"model": "smollm2-135m", "identical_before_binding": True, "differing_arms": []}]
    broken = copy.deepcopy([t for t in trials if t["protocol"] == "online" and t["block"] == 32])
    arm = next(t for t in broken if t["arm"] == "random-256slots")
    arm["nlls"][5] += 1e-9
    assert online_lm.aggregate(broken)["checks"][0]["differing_arms"] == ["random-256slots"]


def test_a_single_forward_pass_shows_no_loss_and_the_other_protocols_do(section):
    ratios = {(r["arm"], r["protocol"]): r["ratio"] for r in section["protocols"]}
    for arm in ("random-256slots", "keydiff-256slots"):
        assert ratios[arm, "single"] == 1.0
        assert ratios[arm, "prefill"] > 1.1
        assert ratios[arm, "online"] > 1.1
    assert {r["block"] for r in section["protocols"]} == {32}


def test_other_block_sizes_have_rows_of_their_own(section):
    assert {r["block"] for r in section["rows"]} == {32}
    assert {r["block"] for r in section["blocks"]} == {1}
    assert row(section, "snapkv-256slots", "blocks")["post_from"] == 257


def test_passages_count_from_where_the_budget_binds_in_each():
    one = {"first_prediction": 0, "nlls": [1.0, 2.0, 3.0, 4.0], "hits": [1, 0, 0, 1], "block": 1}
    two = {**one, "passages": 2, "nlls": [*one["nlls"], 5.0, 6.0, 7.0, 8.0], "hits": one["hits"] * 2}
    assert streams.values(one, "post_nll", 2) == [3.0, 4.0]
    assert streams.values(two, "post_nll", 2) == [3.0, 4.0, 7.0, 8.0]
    assert streams.curve(two)["cumulative"][-1] == pytest.approx(4.5)
    assert streams.curve(two)["tokens"][-1] == 4


def test_curves_end_at_the_cumulative_values(section):
    entry = row(section, "snapkv-256slots", "curves")
    assert len(entry["tokens"]) == len(entry["cumulative"]) == len(entry["windowed"]) == len(entry["accuracy"]) <= 66
    assert entry["tokens"][-1] == 2047
    assert entry["cumulative"][-1] == pytest.approx(row(section, "snapkv-256slots")["nll"], abs=1e-4)
    assert entry["accuracy"][-1] == pytest.approx(row(section, "snapkv-256slots")["accuracy"], abs=1e-4)


def test_sizes_are_told_as_held_and_as_deployed(section):
    entry = row(section, "random-256slots")
    assert entry["saved_share"] == pytest.approx(1 - 256 / 2048)
    assert entry["kv_mib"] == pytest.approx(2 * entry["resident_bf16_mib"])
    assert entry["peak_slots"] == 288


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows.clear(), "at least one trial"),
        (lambda rows: rows.append(copy.deepcopy(rows[0])), "two trials of one stream"),
        (lambda rows: rows[1]["nlls"].pop(), "read different streams"),
        (lambda rows: rows.pop(0), "no full cache"),
    ],
)
def test_streams_that_cannot_be_compared_are_refused(spoil, message):
    rows = online_trials(tokens=512, budgets=(128,))
    spoil(rows)
    with pytest.raises(KvatlasError, match=message):
        online_lm.aggregate(rows)


def test_a_short_stream_has_no_interval_and_no_verdict():
    section = online_lm.aggregate(online_trials(tokens=96, budgets=(32,)))
    assert all(c["verdict"] == "not resolved" for c in section["contrasts"] if c["ci"] is None)
    assert section["rows"][0]["descriptive"]
