"""Recall cell: compress the prefilled prompts of a group with one arm, answer, and measure.

Serves every prompt task whose answers are found by containment (needle, passkey); what a prompt is made of, and where
the question stands, was decided when the prompts were written. One trial per prompt. The prompt is prefilled in full
precision for all arms alike; an arm with a quantizer writes what it keeps through it once, before it answers.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvatlas.compression.apply import Compressor, quantize
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy, make_store
from kvatlas.compression.methods import NO_QUANTIZER
from kvatlas.experiments.cellfile import Stopwatch, write_cell
from kvatlas.experiments.decoding import PADDING, Continuation, greedy, padded, teacher_force, token_nlls
from kvatlas.experiments.prefill import Reference, load, prefill_rows, prompt_rows, stopped, uncached_tokens
from kvatlas.files import read_jsonl
from kvatlas.lm.cache import CLUSTER_SIZE, CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.rope import inversion_error
from kvatlas.tasks.scoring import contains_answer

Prompt = Mapping[str, Any]


def run(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Run one arm on the group `inputs["prompts"]`, prefilled in `inputs["prefill"]`, and write its trials."""
    watch = Stopwatch()
    prompts = read_jsonl(inputs["prompts"])
    policy = make_policy(spec["policy"])
    observation = policy.observation() if policy else Observation()
    trials: list[dict[str, Any]] = []
    steps: list[float] = []
    with torch.inference_mode():
        with watch.part("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
        # Without `batch` or `rows` the group is one batch.
        size = spec.get("batch", spec.get("rows", len(prompts)))
        parts = list(prompt_rows(prompts, size))
        for rows in tqdm(parts, desc=f"{spec['arm']} {spec['mode']} {spec['context']}", unit="batch"):
            with watch.part("load"):
                part, own = load(inputs["prefill"], lm, observation, rows)
            if "batch" in spec:
                # A repeat that measures how much a result owes to the shape of the batch alone.
                part = stopped(prefill_rows(lm, [prompts[row] for row in rows], observation, 0))
            if rows.start == 0:
                watch.record["rope_telemetry"] = rope_telemetry(lm, part)
            batch = [prompts[row] for row in rows]
            compressor = Compressor(
                policy,
                Budget.from_spec(spec) if policy else None,
                batch[0]["n_compress"],
                lm.rotary,
                [prompt_seed(prompt) for prompt in batch],
                rarity_of(lm, batch),
            )
            with watch.part("compress"):
                compressor(part)
                part.stop_observing()
                if spec["quantizer"] != NO_QUANTIZER:
                    quantize(part, make_store(spec["quantizer"]))
            with watch.part("measure"):
                measured = Measurement(lm, batch, part, own, spec["new_tokens"])
                trials += measured.trials(spec)
            steps += measured.generated.step_seconds
    if len(steps) > 1:
        # The first step warms caches up; every row of the batch gets one token per step.
        step = statistics.median(steps[1:])
        size = len(parts[0])
        watch.record |= {"decode_step_seconds": step, "decode_tokens_per_s": size / step, "decode_batch": size}
    watch.record |= {"device": lm.device.type, "dtype": str(lm.dtype).removeprefix("torch.")}
    write_cell(output, spec, trials)
    watch.write(output)


def prompt_seed(prompt: Prompt) -> int:
    """Return a number that depends on which prompt it is, and on nothing else."""
    identity = f"{prompt['id']}".encode()
    return int.from_bytes(hashlib.sha256(identity).digest()[:8], "big") >> 1


def rarity_of(lm: LanguageModel, prompts: Sequence[Prompt]) -> Tensor:
    """Return how many digits and upper-case letters the text of each prompt token has, `[B, T]`."""
    ids = {token for prompt in prompts for token in prompt["ids"]}
    counts = {token: sum(c.isdigit() or c.isupper() for c in lm.tokenizer.decode([token])) for token in ids}
    return torch.tensor([[counts[token] for token in prompt["ids"]] for prompt in prompts], device=lm.device)


def rope_telemetry(lm: LanguageModel, cache: CompressedCache) -> dict[str, float]:
    """Measure how exactly RoPE is undone on the first prompt's keys, over all layers."""
    errors = [inversion_error(lm.rotary, layer.store.read()[0][:1], layer.positions()[:1]) for layer in cache.layers]
    return {"max_relative_error": max(errors)}


@dataclass
class Measurement:
    """All that is measured of one compressed batch.

    Args:
        cache: compressed, without statistics; it is forked, never written.
        reference: the full cache's continuation of the same rows. new_tokens: limit of the greedy answer.
    """

    lm: LanguageModel
    prompts: Sequence[Prompt]
    cache: CompressedCache
    reference: Reference
    new_tokens: int

    def __post_init__(self) -> None:
        self.rest = uncached_tokens(self.lm, self.prompts)
        self.generated: Continuation = greedy(self.lm, self.cache.fork(), self.rest, self.new_tokens)

    def trials(self, spec: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return one trial per prompt, as plain numbers."""
        answers = self._answers()
        gold = padded([prompt["answer_ids"] for prompt in self.prompts], self.lm.device)
        gold_nlls = token_nlls(teacher_force(self.lm, self.cache.fork(), self.rest, gold), gold)
        fidelity = self._fidelity()
        sizes = self._sizes()
        retained = [self._retained(row, prompt) for row, prompt in enumerate(self.prompts)]
        hidden = torch.cosine_similarity(self.generated.hidden, self.reference.hidden.float(), dim=-1)
        place = {
            key: spec[key] for key in ("study", "model", "arm", "method", "budget", "quantizer", "mode", "context")
        }
        return [
            place
            | sizes
            | answer
            | {
                "policy": spec["policy"]["name"],
                "protection": spec.get("protection", "base"),
                **{key: prompt[key] for key in ("id", "seed", "depth", "haystack", "answer")},
                "question": prompt["text"],
                "gold_nlls": _real(gold_nlls[row], gold[row]),
                "hidden_cosine": float(hidden[row]),
                "needle_retained": retained[row],
                "prompt_tokens": len(prompt["ids"]),
                "full_slots": prompt["n_compress"],
            }
            | {name: _real(values[row], self.reference.ids[row]) for name, values in fidelity.items()}
            for row, (prompt, answer) in enumerate(zip(self.prompts, answers, strict=True))
        ]

    def _answers(self) -> list[dict[str, Any]]:
        found = []
        for row, prompt in enumerate(self.prompts):
            ids = self.generated.ids[row][self.generated.mask[row]].tolist()
            text = self.lm.tokenizer.decode([token for token in ids if token not in self.lm.stop_ids])
            nlls = _real(self.generated.nlls[row], self.generated.ids[row])
            hit = contains_answer(text, prompt["answer"])
            found.append({"hit": hit, "output": text, "output_ids": ids, "self_nlls": nlls})
        return found

    def _fidelity(self) -> dict[str, Tensor]:
        """Score the reference continuation: NLL, KL(full || this) and top-1 agreement per token, `[B, N]` each."""
        target, full = self.reference.ids, self.reference.log_probs
        log_probs = teacher_force(self.lm, self.cache.fork(), self.rest, target)
        divergence = (full.exp() * (full - log_probs)).sum(dim=-1).clamp_min(0.0)
        agreement = full.argmax(dim=-1) == log_probs.argmax(dim=-1)
        return {"ref_nlls": token_nlls(log_probs, target), "ref_kls": divergence, "ref_top1": agreement}

    def _sizes(self) -> dict[str, Any]:
        n_rows, layers = len(self.prompts), self.cache.layers
        held = layers[0].store.read()[0]
        per_token = 2 * len(layers) * held.shape[1] * held.shape[3]
        return {
            "slots": statistics.fmean(layer.n_slots for layer in layers),
            "resident_bytes": self.cache.nbytes // n_rows,
            "payload_bytes": self.cache.payload_nbytes // n_rows,
            "peak_bytes": max(self.cache.peak_nbytes, self.cache.nbytes) // n_rows,
            "full_bf16_bytes": 2 * per_token * self.prompts[0]["n_compress"],
            "tokens_written": self.cache.tokens_written,
        }

    def _retained(self, row: int, prompt: Prompt) -> float | None:
        """Return the share of the needle's slots that are kept exactly, mean over layers and KV heads."""
        if prompt["span"] is None:
            return None
        start, stop = prompt["span"]
        shares = []
        for layer in self.cache.layers:
            where = layer.positions()[row]
            inside = (where >= start) & (where < stop)
            if CLUSTER_SIZE in layer.slot_statistics:
                inside &= layer.slot_statistics[CLUSTER_SIZE][row] == 1
            shares.append(float(inside.sum()) / (where.shape[0] * (stop - start)))
        return statistics.fmean(shares)


def _real(values: Tensor, ids: Tensor) -> list[Any]:
    """Return the values of a row's real tokens."""
    real: list[Any] = values[ids != PADDING].tolist()
    return real
