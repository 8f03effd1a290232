"""The online cell on tiny models: what a stream's predictions are, and when a budget changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvatlas.errors import KvatlasError
from kvatlas.experiments import online_lm
from kvatlas.experiments.streams import stream_ids
from kvatlas.lm.loading import LanguageModel
from tests.support.policies import EVICTION_SPECS, UNEVEN, label
from tests.support.tiny_models import SENTENCES, make_model_dir, tiny_model

TOKENS, BLOCK, BUDGET = 120, 8, 40


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("online")
    make_model_dir(root / "model", "qwen2", heads=6, kv_heads=2)
    (root / "text.txt").write_text(" ".join(SENTENCES * 4), encoding="utf-8")
    return {"model": root / "model", "text": root / "text.txt"}


def spec_of(policy: dict[str, Any], **more: Any) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "kind": "online_lm", "study": "online_lm", "model": "tiny", "arm": policy["name"], "method": policy["name"],
        "policy": policy, "budget": str(BUDGET), "quantizer": "none", "n_sinks": 2, "n_recent": 8, "skip_layers": [],
        "protocol": "online", "text": "tiny", "tokens": TOKENS, "block": BLOCK, "device": "cpu", "dtype": "fp32",
    }  # fmt: skip
    return spec | more


def trial(inputs: dict[str, Path], policy: dict[str, Any], **more: Any) -> dict[str, Any]:
    (only,) = online_lm.measure(spec_of(policy, **more), inputs).trials
    return dict(only)


@pytest.fixture(scope="module")
def full(inputs: dict[str, Path]) -> dict[str, Any]:
    return trial(inputs, {"name": "full"}, budget="none")


def transformers_nlls(inputs: dict[str, Path], mask: torch.Tensor | None = None) -> list[float]:
    """NLLs of the stream by the model alone, eager attention, under an additive mask `[T, T]`."""
    model = tiny_model("qwen2", heads=6, kv_heads=2)
    model.set_attn_implementation("eager")
    lm = LanguageModel.load(inputs["model"])
    ids = stream_ids(lm, inputs["text"].read_text(encoding="utf-8"), TOKENS)
    with torch.inference_mode():
        logits = model(ids, attention_mask=None if mask is None else mask[None, None]).logits[0]
    return (-torch.log_softmax(logits, -1)[:-1].gather(1, ids[0, 1:, None])[:, 0]).tolist()


def test_the_full_cache_in_blocks_predicts_as_the_model_does_at_once(inputs, full):
    assert len(full["nlls"]) == len(full["hits"]) == TOKENS - 1
    assert full["nlls"] == pytest.approx(transformers_nlls(inputs), abs=2e-4)
    assert full["first_compressed"] is None


def test_sinks_and_recent_tokens_predict_as_under_a_mask_that_hides_what_was_evicted(inputs):
    hidden = torch.full((TOKENS, TOKENS), -torch.inf)
    for query in range(TOKENS):
        block = query // BLOCK * BLOCK
        hidden[query, :2] = 0
        hidden[query, max(0, block - (BUDGET - 2)) : query + 1] = 0
    hidden = hidden.masked_fill(~torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril(), -torch.inf)
    measured = trial(inputs, {"name": "sink_recent"})
    assert measured["nlls"] == pytest.approx(transformers_nlls(inputs, hidden), abs=2e-4)


@pytest.mark.parametrize("spec", EVICTION_SPECS, ids=label)
def test_a_budget_of_the_whole_stream_reproduces_the_full_cache_exactly(spec, inputs, full):
    measured = trial(inputs, spec, budget=str(TOKENS))
    assert measured["nlls"] == full["nlls"]
    assert measured["hits"] == full["hits"]
    assert measured["first_compressed"] is None


@pytest.mark.parametrize("spec", EVICTION_SPECS, ids=label)
def test_until_the_budget_binds_every_arm_predicts_exactly_as_the_full_cache(spec, inputs, full):
    measured = trial(inputs, spec, n_sinks=0, n_recent=0)
    start = measured["first_compressed"]
    assert start == BUDGET + BLOCK
    assert measured["nlls"][:start] == full["nlls"][:start]
    assert measured["nlls"][start:] != full["nlls"][start:]
    assert measured["slots"] == BUDGET
    assert measured["tokens_written"] == TOKENS
    if spec["name"] not in UNEVEN:  # its layers share the total unevenly
        assert measured["peak_slots"] == BUDGET + BLOCK


@pytest.mark.parametrize(("budget", "block"), [(TOKENS - 2, BLOCK), (TOKENS - 2, 1), (TOKENS - 1, 1), (TOKENS, BLOCK)])
def test_a_cache_that_becomes_smaller_after_the_last_prediction_made_none(inputs, full, budget, block):
    """Such a budget binds at the end alone; statistics of what a smaller cache predicts would be of nothing."""
    measured = trial(inputs, {"name": "sink_recent"}, budget=str(budget), block=block)
    assert measured["first_compressed"] is None
    assert measured["nlls"] == pytest.approx(full["nlls"], abs=2e-4)


def test_blocks_of_one_token_never_show_a_query_more_than_the_budget(inputs, full):
    measured = trial(inputs, {"name": "keydiff"}, block=1)
    assert measured["peak_slots"] == BUDGET + 1
    assert measured["first_compressed"] == BUDGET + 1
    assert measured["nlls"][: BUDGET + 1] == pytest.approx(full["nlls"][: BUDGET + 1], abs=2e-4)


def test_bytes_are_those_of_the_tensors_held(inputs, full):
    slot = 2 * 2 * 2 * 16 * 4  # keys and values, layers, KV heads, width, fp32
    assert full["resident_bytes"] == full["payload_bytes"] == TOKENS * slot
    assert full["full_bf16_bytes"] == TOKENS * slot // 2
    measured = trial(inputs, {"name": "l2norm"})
    positions = 2 * 2 * 4
    assert measured["payload_bytes"] == BUDGET * slot
    assert measured["resident_bytes"] == BUDGET * (slot + positions)
    assert measured["peak_bytes"] == (BUDGET + BLOCK) * (slot + positions)


def test_prefill_then_score_predicts_the_second_half_from_the_compressed_cache(inputs, full):
    whole = trial(inputs, {"name": "full"}, budget="none", protocol="prefill")
    assert whole["nlls"] == pytest.approx(full["nlls"][TOKENS // 2 :], abs=2e-4)
    measured = trial(inputs, {"name": "random"}, protocol="prefill")
    assert measured["first_prediction"] == measured["first_compressed"] == TOKENS // 2
    assert len(measured["nlls"]) == TOKENS - 1 - TOKENS // 2
    assert max(abs(a - b) for a, b in zip(measured["nlls"], whole["nlls"], strict=True)) > 0.01


def test_a_single_forward_pass_cannot_see_eviction(inputs):
    whole = trial(inputs, {"name": "full"}, budget="none", protocol="single")
    measured = trial(inputs, {"name": "random"}, protocol="single")
    assert measured["nlls"] == whole["nlls"]
    assert measured["slots"] == BUDGET
    assert measured["peak_slots"] == TOKENS
    assert measured["first_compressed"] is None


def test_passages_are_streams_of_their_own_one_after_the_other(inputs, full):
    policy = {"name": "random"}
    half = TOKENS // 2
    both = trial(inputs, policy, tokens=half, passages=2, budget="16")
    first = trial(inputs, policy, tokens=half, budget="16")
    assert both["passages"] == 2
    assert len(both["nlls"]) == 2 * (half - 1)
    assert both["nlls"][: half - 1] == first["nlls"]
    # The second passage starts from an empty cache: nothing of the first one helps it.
    assert both["nlls"][half - 1 :] != full["nlls"][half:]
    sizes = ("slots", "resident_bytes", "full_bf16_bytes", "first_compressed")
    assert {name: both[name] for name in sizes} == {name: first[name] for name in sizes}


def test_reindexed_positions_let_a_stream_run_past_the_models_limit(inputs, tmp_path):
    make_model_dir(tmp_path / "short", "qwen2", heads=6, kv_heads=2, max_positions=BUDGET + BLOCK)
    short = inputs | {"model": tmp_path / "short"}
    measured = trial(short, {"name": "streaming_llm", "reindex": True})
    assert measured["reindexed"]
    assert measured["tokens_written"] == TOKENS
    with pytest.raises(KvatlasError, match="past the model's limit"):
        trial(short, {"name": "streaming_llm"})


def test_skipped_layers_keep_the_whole_stream(inputs):
    measured = trial(inputs, {"name": "l2norm"}, skip_layers=[0])
    assert measured["slots"] == (TOKENS + BUDGET) / 2


def test_a_quantized_full_cache_is_smaller_and_predicts_otherwise(inputs, full):
    measured = trial(inputs, {"name": "full"}, budget="none", quantizer="int4")
    assert measured["payload_bytes"] < full["payload_bytes"] / 4
    assert measured["nlls"] != full["nlls"]


def test_a_stream_is_the_same_twice_and_its_speed_is_no_part_of_its_trial(inputs):
    one, two = (online_lm.measure(spec_of({"name": "random"}), inputs) for _ in range(2))
    assert one.trials == two.trials
    assert one.timing["stream_tokens_per_s"] > 0


def test_a_text_that_is_too_short_is_reported(inputs):
    with pytest.raises(KvatlasError, match=r"tokens: the text has \d+ tokens, not 100000"):
        trial(inputs, {"name": "full"}, budget="none", tokens=100_000)
