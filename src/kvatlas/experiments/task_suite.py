"""Task suite cell: stream a group's prompts through one arm, answer greedily, and score against the known answers.

Schedules: `every_step` brings the cache back to its budget after every block of the prompt and every decoded token, so
that the peak is bounded too; `every_block` leaves decoding alone; `after_prefill` compresses once, when the prompt is
in. A quantizer works on write, inside the forward pass, under every schedule. One trial per prompt; the first shard
also scores a passage three ways (single forward, prefill then score, online), because perplexity and accuracy are to
be compared arm by arm.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy, make_store
from kvatlas.experiments.cellfile import Stopwatch, write_cell
from kvatlas.experiments.decoding import Continuation, greedy
from kvatlas.experiments.online_lm import Stream, stream_ids
from kvatlas.experiments.prefill import uncached_tokens
from kvatlas.experiments.recall import Prompt, prompt_seed, rarity_of
from kvatlas.files import read_jsonl
from kvatlas.lm.cache import CLUSTER_SIZE, CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel
from kvatlas.tasks.scoring import contains_answer

EVERY_STEP, EVERY_BLOCK, AFTER_PREFILL = "every_step", "every_block", "after_prefill"
PROTOCOLS = ("single", "prefill", "online")
_PLACE = ("study", "model", "arm", "method", "budget", "quantizer", "mode", "context", "schedule", "block")


def run(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Run one arm on the prompts of `inputs["prompts"]` with the folder `inputs["model"]`, and write its trials."""
    watch = Stopwatch()
    prompts = read_jsonl(inputs["prompts"])
    with torch.inference_mode():
        with watch.part("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
        cache = new_cache(spec, lm)
        compressor = compressor_of(spec, lm, prompts)
        with watch.part("stream"):
            stream_prompts(spec, lm, prompts, cache, compressor)
        held = sizes(cache, len(prompts))
        retained = [retained_share(cache, row, prompt["span"]) for row, prompt in enumerate(prompts)]
        with watch.part("decode"):
            after_step = (lambda: compressor(cache)) if spec["schedule"] == EVERY_STEP else None
            answer = greedy(lm, cache, uncached_tokens(lm, prompts), spec["new_tokens"], after_step)
        end = {"peak_bytes": cache.peak_nbytes // len(prompts), "tokens_written": cache.tokens_written}
        end["saturated"] = cache.saturated
        trials = [
            _trial(spec, lm, prompt, answer, row) | held | end | {"needle_retained": retained[row]}
            for row, prompt in enumerate(prompts)
        ]
        if "passage" in spec:
            with watch.part("passage"):
                trials += list(passage_trials(spec, lm, inputs["text"]))
    if len(answer.step_seconds) > 1:
        step = statistics.median(answer.step_seconds[1:])
        watch.record |= {"decode_step_seconds": step, "decode_tokens_per_s": len(prompts) / step}
        watch.record["decode_batch"] = len(prompts)
    watch.record |= {"device": lm.device.type, "dtype": str(lm.dtype).removeprefix("torch.")}
    write_cell(output, spec, trials)
    watch.write(output)


def new_cache(spec: Mapping[str, Any], lm: LanguageModel) -> CompressedCache:
    """Return the empty cache of an arm: its policy's statistics, its quantizer's stores."""
    policy = make_policy(spec["policy"])
    store = make_store(spec["quantizer"], spec.get("storage", "packed"))
    return lm.new_cache(policy.observation() if policy else Observation(), store)


def compressor_of(spec: Mapping[str, Any], lm: LanguageModel, prompts: Sequence[Prompt]) -> Compressor:
    """Return what brings the arm's cache back to its budget, which refers to the whole prompt."""
    policy = make_policy(spec["policy"])
    budget = Budget.from_spec(spec) if policy else None
    seeds = [prompt_seed(prompt) for prompt in prompts]
    return Compressor(policy, budget, len(prompts[0]["ids"]), lm.rotary, seeds, rarity_of(lm, prompts))


def stream_prompts(
    spec: Mapping[str, Any],
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    cache: CompressedCache,
    compressor: Compressor,
) -> None:
    """Write all of the prompts but the last token, in blocks, and compress when the schedule says so."""
    n_compress = prompts[0]["n_compress"]
    ids = lm.ids([prompt["ids"][:n_compress] for prompt in prompts])
    streams = spec["schedule"] != AFTER_PREFILL
    lm.prefill(ids, cache, spec["block"], (lambda: compressor(cache)) if streams else None)
    if not streams:
        compressor(cache)


def sizes(cache: CompressedCache, n_rows: int) -> dict[str, Any]:
    """Return slots and bytes per prompt as they are now; `full_bf16_bytes` is the same context, uncompressed."""
    keys = cache.layers[0].store.read()[0]
    per_token = 2 * len(cache.layers) * keys.shape[1] * keys.shape[3]
    return {
        "slots": statistics.fmean(layer.n_slots for layer in cache.layers),
        "full_slots": cache.tokens_written,
        "resident_bytes": cache.nbytes // n_rows,
        "payload_bytes": cache.payload_nbytes // n_rows,
        "full_bf16_bytes": 2 * per_token * cache.tokens_written,
    }


def retained_share(cache: CompressedCache, row: int, span: Sequence[int]) -> float:
    """Return the share of a prompt's load-bearing span that is kept exactly, mean over layers and KV heads."""
    start, stop = span
    shares = []
    for layer in cache.layers:
        where = layer.positions()[row]
        inside = (where >= start) & (where < stop)
        if CLUSTER_SIZE in layer.slot_statistics:
            inside &= layer.slot_statistics[CLUSTER_SIZE][row] == 1
        shares.append(float(inside.sum()) / (where.shape[0] * (stop - start)))
    return statistics.fmean(shares)


def _trial(
    spec: Mapping[str, Any], lm: LanguageModel, prompt: Prompt, answer: Continuation, row: int
) -> dict[str, Any]:
    ids = answer.ids[row][answer.mask[row]].tolist()
    text = lm.tokenizer.decode([token for token in ids if token not in lm.stop_ids])
    return {
        **{key: spec[key] for key in _PLACE},
        "policy": spec["policy"]["name"],
        "protection": spec.get("protection", "base"),
        **{key: prompt[key] for key in ("id", "seed", "instance", "family", "depth", "haystack", "answer")},
        "hit": contains_answer(text, prompt["answer"]),
        "output": text,
        "output_ids": ids,
        "self_nlls": answer.nlls[row][answer.mask[row]].tolist(),
        "prompt_tokens": len(prompt["ids"]),
    }


def passage_trials(spec: Mapping[str, Any], lm: LanguageModel, text: Path) -> Iterator[dict[str, Any]]:
    """Score the start of a text three ways with the arm; the budget refers to what is compressed."""
    passage = spec["passage"]
    ids = stream_ids(lm, text.read_text(encoding="utf-8"), passage["tokens"])
    policy = make_policy(spec["policy"])
    for protocol in PROTOCOLS:
        # In protocol `prefill` the first half is compressed: a share of the whole passage would be all of it.
        n_tokens = ids.shape[1] // 2 if protocol == "prefill" else ids.shape[1]
        compressor = Compressor(policy, Budget.from_spec(spec) if policy else None, n_tokens, lm.rotary, [0])
        stream = Stream(lm, ids, new_cache(spec, lm), compressor)
        if protocol == "online":
            stream.online(spec["block"])
        else:
            {"prefill": stream.prefill, "single": stream.single}[protocol]()
        yield {
            **{key: spec[key] for key in _PLACE},
            "policy": spec["policy"]["name"],
            "protection": spec.get("protection", "base"),
            "id": f"passage-{passage['text']}-{passage['tokens']}-{protocol}",
            "family": "passage",
            "protocol": protocol,
            "first_prediction": stream.first_prediction,
            "first_compressed": stream.first_compressed,
            "nlls": stream.nlls,
            "hits": stream.hits,
        }
