"""Prefill and recall cells on a tiny model: forks are exact, the full cache is its own reference, files are checked."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
from kvatlas.errors import KvatlasError
from kvatlas.experiments import prefill, prefill_tensors, prompt_batches, recall, run_cell
from kvatlas.experiments.decoding import PADDING, greedy, padded, teacher_force, token_nlls
from kvatlas.files import read_json, read_jsonl, write_jsonl
from kvatlas.lm.cache import Observation
from kvatlas.lm.loading import LanguageModel
from kvatlas.tasks import needle
from tests.support.tiny_models import make_model_dir, tiny_tokenizer

MACHINE = {"device": "cpu", "dtype": "fp32"}
GROUP = {"study": "needle", "model": "tiny", "mode": "aware", "context": 160, "shard": 0, "new_tokens": 6, **MACHINE}
PREFILL = {"kind": "prefill", "block": 0, "windows": [4], **GROUP}


def recall_spec(policy: dict[str, Any], arm: str, **more: Any) -> dict[str, Any]:
    budget = {"budget": "4x", "n_sinks": 2, "n_recent": 8, "skip_layers": [], "quantizer": "none"}
    return {"kind": "recall", "arm": arm, "method": policy["name"], "policy": policy, **GROUP, **budget, **more}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("recall")
    make_model_dir(root / "model", "qwen2", heads=6, kv_heads=2)
    prompts = needle.make_prompts(
        tiny_tokenizer(), mode="aware", context=160, seeds=[0, 1], depths=[20, 80], haystack="sentences", corpus=None
    )
    write_jsonl(root / "prompts.jsonl", prompts)
    files = {"model": root / "model", "prompts": root / "prompts.jsonl", "prefill": root / "prefill.safetensors"}
    prefill.write(PREFILL, files, files["prefill"])
    return files


def trials_of(inputs: dict[str, Path], spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(trial) for trial in recall.measure(spec, inputs).trials]


def test_the_full_cache_is_its_own_reference(inputs):
    trials = trials_of(inputs, recall_spec({"name": "full"}, "full", budget="none"))
    assert len(trials) == 4
    for trial in trials:
        assert trial["ref_kls"] == [0.0] * len(trial["ref_kls"])
        assert all(trial["ref_top1"])
        assert trial["hidden_cosine"] == pytest.approx(1.0, abs=1e-5)
        assert trial["ref_nlls"] == pytest.approx(trial["self_nlls"], abs=1e-3)
        assert trial["needle_retained"] == 1.0
        assert trial["slots"] == trial["full_slots"] == 159
        assert trial["resident_bytes"] == trial["payload_bytes"] == 2 * trial["full_bf16_bytes"]


def teacher_forced(monkeypatch) -> list[int]:
    """Note the batch size of every block that a cell scores from now on."""
    blocks: list[int] = []

    def counted(*args: Any) -> torch.Tensor:
        blocks.append(len(args[2]))
        return teacher_force(*args)

    monkeypatch.setattr(recall, "teacher_force", counted)
    return blocks


@pytest.mark.parametrize(("size", "rows", "blocks"), [(4, 4, [4]), (2, 2, [2, 2]), (2, 4, [4, 4]), (4, 2, [2] * 4)])
def test_the_full_cache_takes_the_scores_of_its_prefill_where_the_batches_are_the_same(
    size, rows, blocks, inputs, tmp_path, monkeypatch
):
    """It scores the known answers alone then, and its trials are those of scoring the reference again, bit by bit."""
    monkeypatch.setattr(prefill, "BATCH_TOKENS", size * 160)
    files = {**inputs, "prefill": tmp_path / "prefill.safetensors"}
    prefill.write(PREFILL, files, files["prefill"])
    forced = teacher_forced(monkeypatch)
    spec = recall_spec({"name": "full"}, "full", budget="none", rows=rows)
    trials = trials_of(files, spec)
    assert forced == blocks
    load = prefill_tensors.load

    def unknown(*args: Any) -> Any:
        cache, reference = load(*args)
        return cache, dataclasses.replace(reference, as_batched=False)

    monkeypatch.setattr(prefill_tensors, "load", unknown)
    assert trials_of(files, spec) == trials


@pytest.mark.parametrize("more", [{"quantizer": "int8"}, {"batch": 4}], ids=["quantized", "noise floor"])
def test_what_is_not_the_prefills_own_cache_is_scored_itself(more, inputs, monkeypatch):
    forced = teacher_forced(monkeypatch)
    trials_of(inputs, recall_spec({"name": "full"}, "full-other", budget="none", **more))
    assert forced == [4, 4]


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_a_prefill_in_blocks_stores_the_slots_and_not_the_room_behind_them(kv_heads, inputs, tmp_path):
    """With one prompt and one KV head the slots in use look contiguous, whatever lies behind them."""
    make_model_dir(tmp_path / "model", "qwen2", heads=6, kv_heads=kv_heads)
    write_jsonl(tmp_path / "prompts.jsonl", read_jsonl(inputs["prompts"])[:1])
    files = {"model": tmp_path / "model", "prompts": tmp_path / "prompts.jsonl"}
    lm = LanguageModel.load(files["model"])
    prefill.write(PREFILL | {"block": 64}, files, tmp_path / "blocks.safetensors")
    prefill.write(PREFILL, files, tmp_path / "once.safetensors")
    with torch.inference_mode():
        stored, _ = prefill_tensors.load(tmp_path / "blocks.safetensors", lm, Observation(windows=(4,)))
        fresh = prompt_batches.prefill(lm, read_jsonl(files["prompts"]), Observation(windows=(4,)), 64)
    for ours, computed in zip(stored.layers, fresh.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.store.read(), computed.store.read(), strict=True))
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("blocks", "once")]
    assert sizes[0] == sizes[1]


def test_trials_of_a_policy_that_splits_the_budget_say_what_each_layer_holds(inputs):
    pyramid = {"name": "pyramidkv", "window": 4, "kernel": 3}
    (split, *_), (even, *_) = (
        trials_of(inputs, recall_spec({**pyramid, "name": name, **more}, f"{name}-4x"))
        for name, more in (("pyramidkv", {"beta": 4}), ("snapkv", {}))
    )
    assert "layer_slots" not in even
    assert split["layer_slots"] == sorted(set(split["layer_slots"]), reverse=True)
    assert sum(split["layer_slots"]) / len(split["layer_slots"]) == split["slots"] == even["slots"]
    assert split["resident_bytes"] == even["resident_bytes"]


def test_statistics_of_queries_survive_the_prefill_file_and_a_file_without_them_is_named(inputs, tmp_path):
    lm, seen = LanguageModel.load(inputs["model"]), Observation(queries=True)
    prefill.write(PREFILL | {"queries": True}, inputs, tmp_path / "queries.safetensors")
    with torch.inference_mode():
        stored, _ = prefill_tensors.load(tmp_path / "queries.safetensors", lm, seen, range(1, 3))
        fresh = prompt_batches.prefill(lm, read_jsonl(inputs["prompts"]), seen, 0)
    for ours, computed in zip(stored.layers, fresh.layers, strict=True):
        assert ours.query_statistics.keys() == computed.query_statistics.keys() != set()
        assert all(torch.equal(ours.query_statistics[k], v[1:3]) for k, v in computed.query_statistics.items())
    with pytest.raises(KvatlasError, match="query_count"):
        prefill_tensors.load(inputs["prefill"], lm, seen)


def test_a_model_that_cannot_be_unrotated_refuses_only_the_arms_that_read_queries(inputs, tmp_path, monkeypatch):
    lm = LanguageModel.load(inputs["model"])
    fixed = replace(lm, rotary=replace(lm.rotary, refusal="model: layer 0 has no rotation"))
    monkeypatch.setattr(LanguageModel, "load", lambda *_: fixed)
    files = inputs | {"prefill": tmp_path / "prefill.safetensors"}
    prefill.write(PREFILL | {"queries": True}, inputs, files["prefill"])
    assert len(trials_of(files, recall_spec({"name": "h2o"}, "h2o-4x"))) == 4
    with pytest.raises(KvatlasError, match="layer 0 has no rotation"):
        trials_of(files, recall_spec({"name": "expected_attention"}, "expected_attention-4x"))


def test_an_arm_measures_what_its_compressed_cache_says(inputs):
    spec = recall_spec({"name": "snapkv", "window": 4, "kernel": 3}, "snapkv-4x")
    trials = trials_of(inputs, spec)
    lm = LanguageModel.load(inputs["model"])
    prompts = read_jsonl(inputs["prompts"])
    with torch.inference_mode():
        cache, reference = prefill_tensors.load(inputs["prefill"], lm, Observation(windows=(4,)))
        # The same compression by hand: no fork, no file.
        fresh = prompt_batches.prefill(lm, prompts, Observation(windows=(4,)), 0)
        for stored, computed in zip(cache.layers, fresh.layers, strict=True):
            assert torch.equal(stored.store.read()[0], computed.store.read()[0])
            assert torch.equal(stored.slot_statistics["vote4"], computed.slot_statistics["vote4"])
        compressor = Compressor(make_policy(spec["policy"]), Budget.from_spec(spec), 159, lm.rotary, [0] * 4)
        compressor(fresh)
        fresh.stop_observing()
        continuation = greedy(lm, fresh.fork(), lm.ids([prompt["ids"][-1:] for prompt in prompts]), 6)
        log_probs = teacher_force(lm, fresh, lm.ids([prompt["ids"][-1:] for prompt in prompts]), reference.ids)
        nlls = token_nlls(log_probs, reference.ids)
    for row, trial in enumerate(trials):
        assert trial["output_ids"] == continuation.ids[row][continuation.mask[row]].tolist()
        real = reference.ids[row] != PADDING
        assert trial["ref_nlls"] == pytest.approx(nlls[row][real].tolist(), abs=1e-6)
        assert 0 <= trial["needle_retained"] < 1
        assert trial["slots"] == 10 + 149 // 4
        assert trial["resident_bytes"] < trial["peak_bytes"]
        assert sum(trial["ref_kls"]) > 0


def test_the_same_cell_twice_is_the_same_file(inputs, tmp_path):
    spec = recall_spec({"name": "random"}, "random-4x")
    for name in ("one", "two"):
        run_cell.run(spec, inputs, tmp_path / f"{name}.jsonl", fingerprint="abc")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()
    timing = read_json(tmp_path / "one.timing.json")
    assert timing["wall_seconds"] > 0
    assert timing["rope_telemetry"]["max_relative_error"] < 1e-5
    used = read_jsonl(tmp_path / "one.jsonl")[-1]["resident_bytes"]
    # The answer's tokens and room for more lie behind what the trial counts.
    assert used < timing["reserved_bytes"] < 2 * used


def test_a_repeat_in_another_batch_size_differs_by_rounding_only(inputs):
    spec = recall_spec({"name": "full"}, "full-batch1", budget="none", batch=1)
    for trial in trials_of(inputs, spec):
        assert max(trial["ref_kls"]) < 1e-5
        assert all(trial["ref_top1"])


def test_a_split_batch_differs_by_rounding_only(inputs):
    policy = {"name": "snapkv", "window": 4, "kernel": 3}
    whole = trials_of(inputs, recall_spec(policy, "snapkv-4x"))
    split = trials_of(inputs, recall_spec(policy, "snapkv-4x", rows=3))
    assert len(split) == len(whole) == 4
    for one, other in zip(whole, split, strict=True):
        assert other["output_ids"] == one["output_ids"]
        assert other["resident_bytes"] == one["resident_bytes"]
        for name in ("gold_nlls", "ref_nlls", "self_nlls"):
            assert other[name] == pytest.approx(one[name], abs=2e-5)


def test_policies_do_not_depend_on_how_prompts_are_batched():
    prompts = [{"id": "a"}, {"id": "b"}]
    assert prompt_batches.prompt_seed(prompts[0]) != prompt_batches.prompt_seed(prompts[1])
    assert prompt_batches.prompt_seed({"id": "a", "depth": 3}) == prompt_batches.prompt_seed(prompts[0])


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing"])
def test_a_broken_prefill_file_is_named_and_no_cell_is_written(damage, inputs, tmp_path):
    broken = tmp_path / "prefill.safetensors"
    if damage == "truncated":
        broken.write_bytes(inputs["prefill"].read_bytes()[:-1000])
    elif damage == "garbage":
        broken.write_bytes(b"\xff" * 4096)
    output = tmp_path / "cell.jsonl"
    with pytest.raises(KvatlasError, match="broken prefill file") as caught:
        run_cell.run(recall_spec({"name": "full"}, "full"), {**inputs, "prefill": broken}, output)
    assert str(broken) in str(caught.value)
    assert not list(tmp_path.glob("cell*"))


def test_a_prompt_past_the_models_limit_is_reported(tmp_path):
    make_model_dir(tmp_path / "model", "llama", max_positions=32)
    lm = LanguageModel.load(tmp_path / "model")
    with pytest.raises(KvatlasError, match="past the model's limit of 32 tokens"):
        lm.prefill(lm.ids([[5] * 33]), lm.new_cache())


def test_decoding_stops_at_the_stop_token_and_pads(inputs):
    lm = LanguageModel.load(inputs["model"])
    prompts = read_jsonl(inputs["prompts"])
    with torch.inference_mode():
        cache = prompt_batches.prefill(lm, prompts, Observation(), 0)
        uncached = prompt_batches.uncached_tokens(lm, prompts)
        free = greedy(LanguageModel(lm.model, lm.tokenizer, lm.rotary, ()), cache.fork(), uncached, 6)
        stop = int(free.ids[0, 2])
        stopped = greedy(LanguageModel(lm.model, lm.tokenizer, lm.rotary, (stop,)), cache.fork(), uncached, 6)
    first = free.ids[0].tolist().index(stop)
    assert stopped.ids[0, : first + 1].tolist() == free.ids[0, : first + 1].tolist()
    assert (stopped.ids[0, first + 1 :] == PADDING).all()
    assert (stopped.nlls[0, first + 1 :] == 0).all()


def test_padding_is_never_scored():
    target = padded([[3, 4], [5]], torch.device("cpu"))
    assert target.tolist() == [[3, 4], [5, PADDING]]
    log_probs = torch.full((2, 2, 8), -2.0)
    assert token_nlls(log_probs, target).tolist() == [[2.0, 2.0], [2.0, 0.0]]


def test_rarity_counts_digits_and_capitals(inputs):
    lm = LanguageModel.load(inputs["model"])
    ids = lm.tokenizer.encode("QZT-4821 is a code", add_special_tokens=False)
    assert int(prompt_batches.rarity_of(lm, [{"ids": ids}]).sum()) == 7
