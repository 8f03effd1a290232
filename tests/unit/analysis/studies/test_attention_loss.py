"""The attention-loss section: means and spreads by head, bands of layers, and prompts that all arms share."""

from __future__ import annotations

import numpy as np
import pytest

from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims import judge
from kvatlas.analysis.studies import attention_loss
from kvatlas.errors import KvatlasError
from tests.support.places import CLAIMS_FILE
from tests.support.streams import loss_trials

SECTION = attention_loss.aggregate(loss_trials())


def test_rows_are_means_over_layers_and_heads_with_intervals_over_prompts():
    row = next(row for row in SECTION["rows"] if row["arm"] == "l2norm")
    values = [np.mean(trial["alr"]) for trial in loss_trials() if trial["arm"] == "l2norm"]
    assert row["alr"] == pytest.approx(np.mean(values))
    assert row["alr_ci"][0] < row["alr"] < row["alr_ci"][1]
    assert row["relative"] == pytest.approx(row["alr"] / 0.37)
    assert (row["n"], row["n_clusters"]) == (48, 6)


def test_maps_keep_query_heads_and_kv_heads_apart_with_two_spreads():
    row = next(row for row in SECTION["maps"] if row["arm"] == "keydiff")
    for name, shape in (
        ("alr", (30, 9)),
        ("alr_kv", (30, 3)),
        ("alr_sd_prompts", (30, 9)),
        ("alr_sd_queries", (30, 9)),
    ):
        assert np.asarray(row[name]).shape == shape
    assert np.mean(row["alr_sd_prompts"]) == pytest.approx(0.01, rel=0.2)


def test_the_first_layers_are_compared_with_the_others():
    row = next(row for row in SECTION["contrasts"] if row["arm"] == "layers_0_1")
    assert row["versus"] == "other_layers"
    assert row["diff"] == pytest.approx(0.08, abs=0.01)
    judged = judge.evaluate(claim_files.load(CLAIMS_FILE), {"studies": {"attention_loss": SECTION}})
    verdicts = {claim["id"]: claim["verdict"] for claim in judged if claim["study"] == "attention_loss"}
    assert verdicts["alr-is-highest-in-the-first-layers"] == "supported"


def test_bands_that_a_model_lacks_are_left_out():
    small = attention_loss.aggregate(loss_trials(layers=12))
    assert "layers_19_21_29" not in {row["arm"] for row in small["contrasts"]}


def test_one_prompt_has_no_interval_and_no_spread_over_prompts():
    single = attention_loss.aggregate(loss_trials(prompts=1))
    assert single["rows"][0]["alr_ci"] is None
    assert single["maps"][0]["alr_sd_prompts"] is None


def test_arms_that_saw_other_prompts_are_refused():
    with pytest.raises(KvatlasError, match="saw different prompts"):
        attention_loss.aggregate(loss_trials()[:-1])
    with pytest.raises(KvatlasError, match="at least one trial"):
        attention_loss.aggregate([])
