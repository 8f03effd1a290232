"""Ruler cell: compress the context of a group's prompts with one arm, answer, and score in [0, 1].

Schedules: `after_prefill` compresses the prefilled cache once, so that the end is bounded and the peak is the whole cache;
`every_block` streams the prompt in blocks and brings the cache back to its budget after each, so that the peak is bounded
too; `every_step` does so after every token of the answer as well. Mode `reuse` asks several questions, each on a fork of
one compressed cache; mode `turns` asks them one after the other, and the answers stay in the cache. One trial per question.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from kvatlas.compression.apply import Compressor, quantize
from kvatlas.compression.build import make_store
from kvatlas.compression.methods import NO_QUANTIZER
from kvatlas.experiments import arms, measures, prefill_tensors, prompt_batches
from kvatlas.experiments.cell_file import Measured
from kvatlas.experiments.decoding import Continuation, greedy
from kvatlas.experiments.prompt_arms import compressor_of
from kvatlas.experiments.prompt_batches import Prompt
from kvatlas.files import read_jsonl
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel
from kvatlas.tasks.answer_scores import METRICS

AFTER_PREFILL, EVERY_STEP = "after_prefill", "every_step"
TURNS = "turns"


def measure(spec: Mapping[str, Any], inputs: Mapping[str, Path]) -> Measured:
    """Run one arm on the group `inputs["prompts"]` with the folder `inputs["model"]`.

    Under `after_prefill`, `inputs["prefill"]` holds the full cache.
    """
    watch = measures.Stopwatch()
    prompts = read_jsonl(inputs["prompts"])
    trials: list[dict[str, Any]] = []
    step_seconds: list[float] = []
    # Turns go row by row: a row that is done would write what follows its stop token into the cache of the next turn.
    size = 1 if spec["mode"] == TURNS else spec.get("rows", len(prompts))
    with torch.inference_mode():
        with watch.timed("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
        chunks = prompt_batches.split_rows(len(prompts), size)
        for rows in tqdm(chunks, desc=f"{spec['arm']} {spec['mode']} {spec['task']} {spec['context']}", unit="batch"):
            batch = [prompts[row] for row in rows]
            with watch.timed("compress"):
                compressor = compressor_of(spec, lm, batch)
                cache = compressed(spec, lm, batch, inputs, rows, compressor=compressor)
            with watch.timed("measure"):
                for answered in answers(spec, lm, batch, cache, compressor):
                    trials += _trials(spec, lm, batch, cache, answered)
                    step_seconds += answered.continuation.step_seconds
    speed = measures.decode_speed(step_seconds, len(chunks[0]))
    return Measured(_by_prompt(trials, prompts), {**watch.seconds, **measures.device_record(lm), **speed})


@dataclass(frozen=True)
class Answered:
    """One question of every row of a batch: its number from 0, the questions, and what the cache answers to them."""

    number: int
    questions: Sequence[Prompt]
    continuation: Continuation


def compressed(
    spec: Mapping[str, Any],
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    inputs: Mapping[str, Path],
    rows: range,
    *,
    compressor: Compressor,
) -> CompressedCache:
    """Return the arm's cache of some rows, within its budget."""
    if spec["schedule"] != AFTER_PREFILL:
        cache = arms.new_cache(spec, lm)
        lm.prefill(prompt_batches.compressed_tokens(lm, prompts), cache, spec["block"], lambda: compressor(cache))
        if spec["schedule"] != EVERY_STEP:
            cache.stop_observing()
        return cache
    cache, _ = prefill_tensors.load(inputs["prefill"], lm, arms.observation_of(spec), rows)
    compressor(cache)
    cache.stop_observing()
    if spec["quantizer"] != NO_QUANTIZER:
        quantize(cache, make_store(spec["quantizer"]))
    return cache


def answers(
    spec: Mapping[str, Any],
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    cache: CompressedCache,
    compressor: Compressor,
) -> Iterator[Answered]:
    """Answer the questions, each for all rows at once."""
    growing = cache.fork()
    for number, asked in enumerate(zip(*map(_questions, prompts), strict=True)):
        turns = spec["mode"] == TURNS
        tail = "turn_ids" if turns and number else "ids"
        uncached = lm.ids([question[tail] for question in asked])
        answering = growing if turns else cache.fork()
        after_step = _compress_each_step(compressor, answering) if spec["schedule"] == EVERY_STEP else None
        yield Answered(number, asked, greedy(lm, answering, uncached, spec["new_tokens"], after_step))


def _compress_each_step(compressor: Compressor, cache: CompressedCache) -> Callable[[], None]:
    return lambda: compressor(cache)


def _questions(prompt: Prompt) -> list[Prompt]:
    """The questions of a prompt, each with the tokens that are fed for it; most prompts have one."""
    asked: list[Prompt] | None = prompt.get("questions")
    return asked or [{**prompt, "ids": prompt["ids"][prompt["n_compress"] :]}]


def _trials(
    spec: Mapping[str, Any],
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    cache: CompressedCache,
    answered: Answered,
) -> list[dict[str, Any]]:
    shared = measures.arm_identity(spec, "mode", "context", "task", "schedule")
    shared |= measures.cache_sizes(cache, len(prompts), prompts[0]["n_compress"])
    shared |= measures.cache_history(cache, len(prompts)) | {"full_slots": prompts[0]["n_compress"]}
    number, continuation = answered.number, answered.continuation
    trials = []
    for row, (prompt, question) in enumerate(zip(prompts, answered.questions, strict=True)):
        real = continuation.mask[row]
        ids = continuation.ids[row][real].tolist()
        text = lm.tokenizer.decode([token for token in ids if token not in lm.stop_ids])
        score = METRICS[prompt["metric"]](text, question["answers"])
        suffix = f"-q{number}" if "questions" in prompt else ""
        trials.append(
            shared
            | {key: prompt[key] for key in ("seed", "depth", "haystack")}
            | {"id": prompt["id"] + suffix, "question": question["text"], "answer": question["answer"]}
            | {"question_number": number + 1, "score": score, "hit": score == 1.0, "output": text, "output_ids": ids}
            | {"self_nlls": continuation.nlls[row][real].tolist(), "prompt_tokens": len(prompt["ids"])}
            | {"needle_retained": retained(cache, row, question["spans"])}
        )
    return trials


def retained(cache: CompressedCache, row: int, spans: Sequence[Sequence[int]] | None) -> float | None:
    """Return the share of the tokens of `spans` that is kept exactly, mean over layers and KV heads; None without spans."""
    if not spans:
        return None
    shares = [measures.retained_share(cache, row, span) or 0.0 for span in spans]
    return statistics.fmean(shares, weights=[stop - start for start, stop in spans])


def _by_prompt(trials: list[dict[str, Any]], prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    """The trials in the order of the prompts, whatever the batches were."""
    place = {prompt["id"]: number for number, prompt in enumerate(prompts)}
    return sorted(trials, key=lambda trial: (place[trial["id"].partition("-q")[0]], trial["question_number"]))
