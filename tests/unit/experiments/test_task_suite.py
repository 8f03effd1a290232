"""Task suite and quantizer error cells on a tiny model: what they write is what a run by hand gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvatlas.compression.build import make_store
from kvatlas.experiments import quantizer_error, task_suite
from kvatlas.experiments.decoding import greedy
from kvatlas.experiments.streams import stream_ids
from kvatlas.files import read_jsonl, write_jsonl
from kvatlas.lm.loading import LanguageModel
from kvatlas.tasks import suite
from kvatlas.tasks.text import draw_sentence, rng_for
from tests.support.tiny_models import make_model_dir, tiny_tokenizer

CONTEXT = 700
MACHINE = {"device": "cpu", "dtype": "fp32"}
FULL = {"arm": "full", "method": "full", "policy": {"name": "full"}, "budget": "none"}
BASE = {
    "kind": "task_suite",
    "study": "task_suite",
    "model": "tiny",
    "mode": "suite",
    "context": CONTEXT,
    "shard": 0,
    "schedule": "every_step",
    "block": 64,
    "new_tokens": 5,
    "storage": "packed",
    "quantizer": "none",
    "n_sinks": 4,
    "n_recent": 32,
    "skip_layers": [],
    **MACHINE,
}


def evicting(policy: str, **more: Any) -> dict[str, Any]:
    return {"arm": f"{policy}-50pct", "method": policy, "policy": {"name": policy}, "budget": "50%", **more}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("suite")
    make_model_dir(root / "model", "qwen2", heads=4, kv_heads=2, head_dim=32)
    prompts = suite.make_prompts(tiny_tokenizer(), mode="suite", context=CONTEXT, instances=[1])
    write_jsonl(root / "prompts.jsonl", prompts[2:])
    rng = rng_for("text")
    (root / "text.txt").write_text(" ".join(draw_sentence(rng) for _ in range(150)), encoding="utf-8")
    return {"model": root / "model", "prompts": root / "prompts.jsonl", "text": root / "text.txt"}


def trials_of(inputs: dict[str, Path], **more: Any) -> list[dict[str, Any]]:
    return [dict(trial) for trial in task_suite.measure(BASE | FULL | more, inputs).trials]


def test_the_full_cache_answers_as_plain_generation_does(inputs):
    trials = trials_of(inputs)
    lm = LanguageModel.load(inputs["model"], **MACHINE)
    prompts = read_jsonl(inputs["prompts"])
    cache = lm.new_cache()
    with torch.inference_mode():
        ids = lm.ids([prompt["ids"] for prompt in prompts])
        lm.prefill(ids[:, :-1], cache, 64)
        continuation = greedy(lm, cache, ids[:, -1:], 5)
    for row, trial in enumerate(trials):
        assert trial["output_ids"] == continuation.ids[row][continuation.mask[row]].tolist()
        assert trial["slots"] == trial["full_slots"] == CONTEXT - 1
        assert trial["payload_bytes"] == 2 * trial["full_bf16_bytes"]
        assert trial["needle_retained"] == 1.0
    assert {trial["family"] for trial in trials} == {"needle", "multi_turn", "instruction", "summary"}


def test_every_step_holds_the_budget_to_the_end_and_bounds_the_peak(inputs):
    trials = trials_of(inputs, **evicting("attention_sink", quantizer="int8"))
    slot = 2 * 2 * 2 * (32 + 4)  # keys and values, layers, heads; codes, scale and zero of a head
    columns = 2 * 2 * 4
    for trial in trials:
        assert trial["slots"] == CONTEXT // 2
        assert trial["payload_bytes"] == slot * CONTEXT // 2
        assert trial["resident_bytes"] == (slot + columns) * CONTEXT // 2
        assert trial["peak_bytes"] <= (slot + columns) * (CONTEXT // 2 + 64)
        assert CONTEXT <= trial["tokens_written"] < CONTEXT + 5


def test_after_prefill_peaks_at_the_whole_prompt(inputs):
    steps = trials_of(inputs, **evicting("random"))
    once = trials_of(inputs, **evicting("random", schedule="after_prefill"))
    assert once[0]["slots"] == steps[0]["slots"] == CONTEXT // 2
    assert once[0]["peak_bytes"] >= 2 * once[0]["full_bf16_bytes"] > steps[0]["peak_bytes"]


@pytest.mark.parametrize("quantizer", ["int4", "kivi4"])
def test_storages_give_the_same_trials(quantizer, inputs):
    packed, simulated = (
        trials_of(inputs, **evicting("snapkv", quantizer=quantizer, storage=storage))
        for storage in ("packed", "simulated")
    )
    assert packed == simulated


def test_a_passage_is_scored_three_ways_and_only_streams_see_eviction(inputs):
    passage = {"passage": {"text": "made", "tokens": 400}}
    full, evicted = (
        {t["protocol"]: t for t in trials_of(inputs, **passage, **arm) if "protocol" in t}
        for arm in ({}, evicting("sliding_window"))
    )
    assert set(full) == {"single", "prefill", "online"}
    assert evicted["single"]["nlls"] == full["single"]["nlls"]
    assert len(full["single"]["nlls"]) == 399
    assert len(full["prefill"]["nlls"]) == 199
    for protocol in ("prefill", "online"):
        assert sum(evicted[protocol]["nlls"]) != pytest.approx(sum(full[protocol]["nlls"]), abs=1e-3)
    # A quantizer works on write, so that a single forward pass sees it.
    quantized = trials_of(inputs, **passage, quantizer="int2")
    single = next(trial for trial in quantized if trial.get("protocol") == "single")
    assert sum(single["nlls"]) != pytest.approx(sum(full["single"]["nlls"]), abs=1e-3)


# -- reconstruction error


def error_trials(inputs: dict[str, Path], quantizer: str) -> dict[str, list[dict[str, Any]]]:
    spec = {"kind": "quantizer_error", "study": "quantizer_error", "model": "tiny", "arm": f"full-{quantizer}"}
    spec |= {"quantizer": quantizer, "text": "made", "context": 160, "prompts": 3, **MACHINE}
    by_granularity: dict[str, list[dict[str, Any]]] = {}
    for trial in quantizer_error.measure(spec, inputs).trials:
        by_granularity.setdefault(trial["granularity"], []).append(dict(trial))
    return by_granularity


def test_errors_are_those_of_the_model_s_own_keys_and_values(inputs):
    trials = error_trials(inputs, "int4")
    assert {granularity: len(rows) for granularity, rows in trials.items()} == {"token": 3, "channel": 3}
    lm = LanguageModel.load(inputs["model"], **MACHINE)
    cache = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(stream_ids(lm, inputs["text"].read_text(), 160), cache)
        keys, values = cache.layers[1].store.read()
        store = make_store("int4")()
        store.append(keys, values)
        error = store.read()[0] - keys
    native = trials["token"][0]
    assert native["key_error_l1"][1] == pytest.approx(float(error.abs().sum()), rel=1e-5)
    assert native["key_signal_sq"][1] == pytest.approx(float(keys.square().sum()), rel=1e-5)
    assert native["bits_per_value"] == 4 + 32 / 32
    assert native["head_dim"] == 32


@pytest.mark.parametrize(("quantizer", "bits"), [("fp32", 32), ("fp8", 8), ("kivi4", 5), ("kivi2", 3)])
def test_bits_per_value_leave_the_unquantized_residual_out(quantizer, bits, inputs):
    (rows,) = error_trials(inputs, quantizer).values()
    assert {row["bits_per_value"] for row in rows} == {bits}
    assert all((error == 0) == (quantizer == "fp32") for row in rows for error in row["value_error_l1"])
