"""Ruler cells on a tiny model: scores, retained spans, streamed prompts with a bounded peak, several questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvatlas.experiments import prefill, prompt_batches, ruler
from kvatlas.experiments.decoding import greedy
from kvatlas.experiments.prompt_arms import compressor_of
from kvatlas.files import read_jsonl, write_jsonl
from kvatlas.lm.cache import Observation
from kvatlas.lm.loading import LanguageModel
from kvatlas.tasks.ruler import all_tasks
from tests.support.tiny_models import make_model_dir, tiny_tokenizer

CONTEXT = 768
TASK = "niah_multikey_2"
SHARED: dict[str, Any] = {
    "study": "ruler",
    "model": "tiny",
    "context": CONTEXT,
    "shard": 0,
    "device": "cpu",
    "dtype": "fp32",
}
SNAPKV = {"name": "snapkv", "window": 16}


def spec(mode: str, policy: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    policy = policy or {"name": "full"}
    budget = {"budget": "none" if policy["name"] == "full" else "4x", "n_sinks": 4, "n_recent": 16, "skip_layers": []}
    arm = {"kind": "ruler", "arm": policy["name"], "method": policy["name"], "policy": policy, "quantizer": "none"}
    run = {"task": TASK, "mode": mode, "schedule": "after_prefill", "new_tokens": 4}
    return SHARED | arm | budget | run | more


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Path]]:
    """The files of a group per mode."""
    root = tmp_path_factory.mktemp("ruler")
    make_model_dir(root / "model", "qwen2", heads=4, kv_heads=2, max_positions=2048)
    groups = {}
    for mode in ("agnostic", "reuse", "turns"):
        files = {"model": root / "model", "prompts": root / f"{mode}.jsonl", "prefill": root / f"{mode}.safetensors"}
        rows = all_tasks()[TASK].prompts(tiny_tokenizer(), mode=mode, context=CONTEXT, seeds=[0, 1])
        write_jsonl(files["prompts"], rows)
        prefilled = SHARED | {"kind": "prefill", "block": 0, "windows": [16], "mode": mode, "new_tokens": 1}
        prefill.write(prefilled, files, files["prefill"])
        groups[mode] = files
    return groups


def trials_of(inputs: dict[str, Path], wanted: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(trial) for trial in ruler.measure(wanted, inputs).trials]


def test_an_answer_is_scored_by_the_values_that_it_holds(
    inputs: dict[str, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = read_jsonl(inputs["agnostic"]["prompts"])
    said = iter([f"It is {prompts[0]['answers'][0]}.", "I do not know."])
    decode = LanguageModel.load(inputs["agnostic"]["model"]).tokenizer.__class__
    monkeypatch.setattr(decode, "decode", lambda *_args, **_more: next(said))
    monkeypatch.setattr(prompt_batches, "rarity_of", lambda *_: None)
    first, second = trials_of(inputs["agnostic"], spec("agnostic"))
    assert (first["score"], first["hit"], second["score"], second["hit"]) == (1.0, True, 0.0, False)
    assert first["output"].endswith(f"{first['answer']}.")


def test_the_full_cache_keeps_its_spans_and_streaming_it_in_blocks_answers_the_same(
    inputs: dict[str, dict[str, Path]],
) -> None:
    at_once = trials_of(inputs["agnostic"], spec("agnostic"))
    streamed = trials_of(inputs["agnostic"], spec("agnostic", schedule="every_block", block=100))
    assert [trial["needle_retained"] for trial in at_once] == [1.0, 1.0]
    assert [trial["output_ids"] for trial in streamed] == [trial["output_ids"] for trial in at_once]
    n_compress = read_jsonl(inputs["agnostic"]["prompts"])[0]["n_compress"]
    assert {trial["slots"] for trial in at_once + streamed} == {n_compress}


@pytest.mark.parametrize("policy", [SNAPKV, {"name": "random"}], ids=lambda policy: str(policy["name"]))
def test_eviction_after_every_block_bounds_the_peak_and_eviction_after_the_prefill_does_not(
    policy: dict[str, Any], inputs: dict[str, dict[str, Path]]
) -> None:
    late = trials_of(inputs["agnostic"], spec("agnostic", policy))[0]
    early = trials_of(inputs["agnostic"], spec("agnostic", policy, schedule="every_block", block=64))[0]
    assert early["slots"] == late["slots"] < late["full_slots"] / 3
    assert late["peak_bytes"] >= late["full_bf16_bytes"] * 2
    # A block above the budget, in fp32, with the policy's statistics beside it.
    assert early["peak_bytes"] < late["peak_bytes"] / 2
    assert early["peak_bytes"] >= early["resident_bytes"]


def test_retained_is_the_share_of_all_spans_weighed_by_their_tokens(inputs: dict[str, dict[str, Path]]) -> None:
    lm = LanguageModel.load(inputs["agnostic"]["model"])
    with torch.inference_mode():
        cache = prompt_batches.prefill(lm, read_jsonl(inputs["agnostic"]["prompts"]), Observation(), 0)
    n = cache.tokens_written
    assert ruler.retained(cache, 0, [[0, 10], [n - 5, n + 25]]) == pytest.approx((10 + 5) / 40)
    assert ruler.retained(cache, 0, None) is None


def test_each_question_of_reuse_is_answered_by_a_fork_of_one_compressed_cache(
    inputs: dict[str, dict[str, Path]],
) -> None:
    trials = trials_of(inputs["reuse"], spec("reuse", SNAPKV))
    prompts = read_jsonl(inputs["reuse"]["prompts"])
    assert [trial["id"] for trial in trials] == [f"{prompt['id']}-q{n}" for prompt in prompts for n in range(4)]
    assert [trial["question_number"] for trial in trials] == [1, 2, 3, 4] * 2
    assert len({trial["needle_retained"] for trial in trials}) > 1
    # The last question is answered as if it were the only one.
    wanted = spec("reuse", SNAPKV)
    lm = LanguageModel.load(inputs["reuse"]["model"])
    with torch.inference_mode():
        compressor = compressor_of(wanted, lm, prompts)
        cache = ruler.compressed(wanted, lm, prompts, inputs["reuse"], range(2), compressor=compressor)
        alone = greedy(lm, cache, lm.ids([prompt["questions"][3]["ids"] for prompt in prompts]), 4)
    assert [alone.ids[row][alone.mask[row]].tolist() for row in range(2)] == [
        trials[3]["output_ids"],
        trials[7]["output_ids"],
    ]


def test_turns_leave_questions_and_answers_in_the_cache_of_the_next_one(inputs: dict[str, dict[str, Path]]) -> None:
    trials = trials_of(inputs["turns"], spec("turns"))
    prompt = read_jsonl(inputs["turns"]["prompts"])[0]
    first, second = prompt["questions"][:2]
    lm = LanguageModel.load(inputs["turns"]["model"])
    said = trials[0]["output_ids"]
    # What was generated last is in no cache: a stop token, or the token that the limit cut off.
    conversation = prompt["ids"][: prompt["n_compress"]] + first["ids"] + said[:-1] + second["turn_ids"]
    with torch.inference_mode():
        by_hand = greedy(lm, lm.new_cache(), lm.ids([conversation]), 4)
    assert by_hand.ids[0][by_hand.mask[0]].tolist() == trials[1]["output_ids"]
    assert second["text"] in lm.tokenizer.decode(second["turn_ids"])


@pytest.mark.parametrize("policy", [SNAPKV, {"name": "h2o"}], ids=lambda policy: str(policy["name"]))
def test_every_step_brings_the_cache_to_its_budget_while_it_answers(
    policy: dict[str, Any], inputs: dict[str, dict[str, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots: list[int] = []

    def watched(lm: LanguageModel, cache: Any, uncached: Any, new_tokens: int, after_step: Any) -> Any:
        def step() -> None:
            after_step()
            slots.append(max(layer.n_slots for layer in cache.layers))

        return greedy(lm, cache, uncached, new_tokens, step)

    monkeypatch.setattr(ruler, "greedy", watched)
    trials = trials_of(inputs["agnostic"], spec("agnostic", policy, schedule="every_step", block=64))
    # The question is not compressed away before the first step; from then on the budget holds.
    assert len(slots) == 4
    assert set(slots) == {int(trials[0]["slots"])}
