"""Recall cell: compress the prefilled prompts of a group with one arm, answer, and measure.

Serves every prompt task whose answers are found by containment (needle, passkey); what a prompt is made of, and where
the question stands, was decided when the prompts were written. One trial per prompt. The prompt is prefilled in full
precision for all arms alike; an arm with a quantizer writes what it keeps through it once, before it answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvatlas.compression.apply import quantize
from kvatlas.compression.build import make_store
from kvatlas.compression.methods import NO_QUANTIZER
from kvatlas.experiments import arms, measures, prefill_tensors, prompt_batches
from kvatlas.experiments.answers import answer_fields
from kvatlas.experiments.cell_file import Measured
from kvatlas.experiments.decoding import PADDING, Continuation, greedy, padded, teacher_force, token_nlls
from kvatlas.experiments.prefill_tensors import Reference
from kvatlas.experiments.prompt_arms import compressor_of
from kvatlas.experiments.prompt_batches import Prompt
from kvatlas.files import read_jsonl
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.rope import inversion_error


def measure(spec: Mapping[str, Any], inputs: Mapping[str, Path]) -> Measured:
    """Run one arm on the group `inputs["prompts"]`, prefilled in `inputs["prefill"]` by the folder `inputs["model"]`."""
    watch = measures.Stopwatch()
    prompts = read_jsonl(inputs["prompts"])
    trials: list[dict[str, Any]] = []
    step_seconds: list[float] = []
    telemetry: dict[str, Any] = {}
    with torch.inference_mode():
        with watch.timed("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
        # Without `batch` or `rows` the group is one batch.
        chunks = prompt_batches.split_rows(len(prompts), spec.get("batch", spec.get("rows", len(prompts))))
        for rows in tqdm(chunks, desc=f"{spec['arm']} {spec['mode']} {spec['context']}", unit="batch"):
            batch = [prompts[row] for row in rows]
            with watch.timed("load"):
                cache, reference = prefill_tensors.load(inputs["prefill"], lm, arms.observation_of(spec), rows)
            if "batch" in spec:
                # A repeat that measures how much a result owes to the shape of the batch alone.
                full = prompt_batches.prefill(lm, batch, arms.observation_of(spec), 0)
                cache = prompt_batches.fork_unobserved(full)
            if rows.start == 0:
                telemetry = {"rope_telemetry": rope_telemetry(lm, cache)}
            compressor = compressor_of(spec, lm, batch)
            with watch.timed("compress"):
                compressor(cache)
                cache.stop_observing()
                if spec["quantizer"] != NO_QUANTIZER:
                    quantize(cache, make_store(spec["quantizer"]))
            # The prefill has scored its continuation with this very cache, if it ran these rows as one batch.
            untouched = compressor.slots() is None and spec["quantizer"] == NO_QUANTIZER and "batch" not in spec
            with watch.timed("measure"):
                scored = reference.log_probs if untouched and reference.as_batched else None
                measurement = Measurement(lm, batch, cache, reference, spec["new_tokens"], scored)
                trials += measurement.trials(spec)
            step_seconds += measurement.generated.step_seconds
            telemetry |= measurement.reserved if rows.start == 0 else {}
    speed = measures.decode_speed(step_seconds, len(chunks[0]))
    timing = {**watch.seconds, **measures.device_record(lm), **speed, **telemetry}
    return Measured(trials, timing)


def rope_telemetry(lm: LanguageModel, cache: CompressedCache) -> dict[str, float]:
    """Measure how exactly RoPE is undone on the first prompt's keys, over all layers; nothing where it cannot be."""
    if lm.rotary.refusal:
        return {}
    errors = [inversion_error(lm.rotary, layer.store.read()[0][:1], layer.positions()[:1]) for layer in cache.layers]
    return {"max_relative_error": max(errors)}


@dataclass
class Measurement:
    """All that is measured of one compressed batch.

    Args:
        cache: compressed, without statistics; it is forked, never written.
        reference: the full cache's continuation of the same rows. new_tokens: limit of the greedy answer.
        scored: `[B, N, V]` log-probabilities of this cache before each token of the reference, where they are known.
    """

    lm: LanguageModel
    prompts: Sequence[Prompt]
    cache: CompressedCache
    reference: Reference
    new_tokens: int
    scored: Tensor | None = None

    def __post_init__(self) -> None:
        self.uncached = prompt_batches.uncached_tokens(self.lm, self.prompts)
        answered = self.cache.fork()
        self.generated: Continuation = greedy(self.lm, answered, self.uncached, self.new_tokens)
        self.reserved = measures.reserved_bytes(answered, len(self.prompts))

    def trials(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one trial per prompt, as plain numbers."""
        answers = answer_fields(self.lm, self.prompts, self.generated)
        gold = padded([prompt["answer_ids"] for prompt in self.prompts], self.lm.device)
        gold_nlls = token_nlls(teacher_force(self.lm, self.cache.fork(), self.uncached, gold), gold)
        fidelity = self._fidelity()
        hidden = torch.cosine_similarity(self.generated.hidden, self.reference.hidden.float(), dim=-1)
        n_rows, n_tokens = len(self.prompts), self.prompts[0]["n_compress"]
        shared = measures.arm_identity(spec, "mode", "context")
        shared |= measures.cache_sizes(self.cache, n_rows, n_tokens) | measures.cache_history(self.cache, n_rows)
        return [
            shared
            | answers[row]
            | {
                **{key: prompt[key] for key in ("id", "seed", "depth", "haystack", "answer")},
                "question": prompt["text"],
                "gold_nlls": _real(gold_nlls[row], gold[row]),
                "hidden_cosine": float(hidden[row]),
                "needle_retained": measures.retained_share(self.cache, row, prompt["span"]),
                "prompt_tokens": len(prompt["ids"]),
                "full_slots": prompt["n_compress"],
            }
            | {name: _real(values[row], self.reference.ids[row]) for name, values in fidelity.items()}
            for row, prompt in enumerate(self.prompts)
        ]

    def _fidelity(self) -> dict[str, Tensor]:
        """Score the reference continuation: NLL, KL(full || this) and top-1 agreement per token, `[B, N]` each."""
        target, full = self.reference.ids, self.reference.log_probs
        log_probs = self.scored
        if log_probs is None:
            log_probs = teacher_force(self.lm, self.cache.fork(), self.uncached, target)
        divergence = (full.exp() * (full - log_probs)).sum(dim=-1).clamp_min(0.0)
        agreement = full.argmax(dim=-1) == log_probs.argmax(dim=-1)
        return {"ref_nlls": token_nlls(log_probs, target), "ref_kls": divergence, "ref_top1": agreement}


def _real(values: Tensor, ids: Tensor) -> list[Any]:
    """Return the values of a row's real tokens."""
    real: list[Any] = values[ids != PADDING].tolist()
    return real
