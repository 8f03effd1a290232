"""Task suite cell: stream a group's prompts through one arm, answer greedily, and score against the known answers.

Schedules: `every_step` brings the cache back to its budget after every block of the prompt and every decoded token, so
that the peak is bounded too; `every_block` leaves decoding alone; `after_prefill` compresses once, when the prompt is
in. A quantizer works on write, inside the forward pass, under every schedule. One trial per prompt; the first shard
also scores a passage three ways (single forward, prefill then score, online), because perplexity and accuracy are to
be compared arm by arm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kvatlas.compression.apply import Compressor
from kvatlas.experiments import arms, measures, prompt_batches
from kvatlas.experiments.answers import answer_fields
from kvatlas.experiments.cell_file import Measured
from kvatlas.experiments.decoding import greedy
from kvatlas.experiments.prompt_batches import Prompt
from kvatlas.experiments.streams import PROTOCOLS, Stream, stream_ids
from kvatlas.files import read_jsonl
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel

EVERY_STEP, EVERY_BLOCK, AFTER_PREFILL = "every_step", "every_block", "after_prefill"


def measure(spec: Mapping[str, Any], inputs: Mapping[str, Path]) -> Measured:
    """Run one arm on the prompts of `inputs["prompts"]` with the folder `inputs["model"]`."""
    watch = measures.Stopwatch()
    prompts = read_jsonl(inputs["prompts"])
    with torch.inference_mode():
        with watch.timed("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
        cache = arms.new_cache(spec, lm)
        compressor = compressor_of(spec, lm, prompts)
        with watch.timed("stream"):
            stream_prompts(spec, lm, prompts, cache, compressor)
        streamed = measures.cache_sizes(cache, len(prompts), cache.tokens_written)
        streamed["full_slots"] = cache.tokens_written
        retained = [measures.retained_share(cache, row, prompt["span"]) for row, prompt in enumerate(prompts)]
        with watch.timed("decode"):
            after_step = (lambda: compressor(cache)) if spec["schedule"] == EVERY_STEP else None
            uncached = prompt_batches.uncached_tokens(lm, prompts)
            continuation = greedy(lm, cache, uncached, spec["new_tokens"], after_step)
        decoded = measures.cache_history(cache, len(prompts)) | {"saturated": cache.saturated}
        answers = answer_fields(lm, prompts, continuation)
        trials = [
            _prompt_trial(spec, prompt) | answers[row] | streamed | decoded | {"needle_retained": retained[row]}
            for row, prompt in enumerate(prompts)
        ]
        if "passage" in spec:
            with watch.timed("passage"):
                trials += list(passage_trials(spec, lm, inputs["text"]))
    speed = measures.decode_speed(continuation.step_seconds, len(prompts))
    speed |= measures.reserved_bytes(cache, len(prompts))
    return Measured(trials, {**watch.seconds, **measures.device_record(lm), **speed})


def compressor_of(spec: Mapping[str, Any], lm: LanguageModel, prompts: Sequence[Prompt]) -> Compressor:
    """Return what brings the arm's cache back to its budget, which refers to the whole prompt."""
    seeds = [prompt_batches.prompt_seed(prompt) for prompt in prompts]
    return arms.new_compressor(spec, lm, len(prompts[0]["ids"]), seeds, prompt_batches.rarity_of(lm, prompts))


def stream_prompts(
    spec: Mapping[str, Any],
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    cache: CompressedCache,
    compressor: Compressor,
) -> None:
    """Write all of the prompts but the last token, in blocks, and compress when the schedule says so."""
    streams = spec["schedule"] != AFTER_PREFILL
    after_block = (lambda: compressor(cache)) if streams else None
    lm.prefill(prompt_batches.compressed_tokens(lm, prompts), cache, spec["block"], after_block)
    if not streams:
        compressor(cache)


def _identity(spec: Mapping[str, Any]) -> dict[str, Any]:
    return measures.arm_identity(spec, "mode", "context", "schedule", "block")


def _prompt_trial(spec: Mapping[str, Any], prompt: Prompt) -> dict[str, Any]:
    copied = ("id", "seed", "instance", "family", "depth", "haystack", "answer")
    return _identity(spec) | {key: prompt[key] for key in copied} | {"prompt_tokens": len(prompt["ids"])}


def passage_trials(spec: Mapping[str, Any], lm: LanguageModel, text: Path) -> Iterator[dict[str, Any]]:
    """Score the start of a text three ways with the arm; the budget refers to what is compressed."""
    passage = spec["passage"]
    ids = stream_ids(lm, text.read_text(encoding="utf-8"), passage["tokens"])
    for protocol in PROTOCOLS:
        # In protocol `prefill` the first half is compressed: a share of the whole passage would be all of it.
        n_tokens = ids.shape[1] // 2 if protocol == "prefill" else ids.shape[1]
        stream = Stream(lm, ids, arms.new_cache(spec, lm), arms.new_compressor(spec, lm, n_tokens, [0]))
        stream.read(protocol, spec["block"])
        yield {
            **_identity(spec),
            "id": f"passage-{passage['text']}-{passage['tokens']}-{protocol}",
            "family": "passage",
            "protocol": protocol,
            "first_prediction": stream.first_prediction,
            "first_compressed": stream.first_compressed,
            "nlls": stream.nlls,
            "hits": stream.hits,
        }
