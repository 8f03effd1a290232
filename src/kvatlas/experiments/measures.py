"""What kinds of cells measure alike: identity, sizes, retained spans, speed, durations.

Answers are in `answers`, so that kinds without any do not depend on how they are decoded and scored.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from kvatlas.lm.cache import CLUSTER_SIZE, CompressedCache
from kvatlas.lm.loading import LanguageModel


def identity(spec: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the fields that say which cell a trial is of: study, model and arm, and `keys` of the spec."""
    return {key: spec[key] for key in ("study", "model", "arm", *keys)}


def arm_identity(spec: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return the identity of a trial under a budget: also method, policy, budget, quantizer and protection."""
    named = {"policy": spec["policy"]["name"], "protection": spec.get("protection", "base")}
    return identity(spec, "method", "budget", "quantizer", *keys) | named


def cache_sizes(cache: CompressedCache, n_rows: int, n_tokens: int) -> dict[str, Any]:
    """Return what a cache of `n_rows` prompts takes as it is now, per prompt.

    slots: mean over layers. layer_slots: of each, where the policy states its split of the budget.
    resident_bytes: all tensors. payload_bytes: keys and values with their scales.
    full_bf16_bytes: a context of `n_tokens` tokens, uncompressed.
    """
    keys = cache.layers[0].store.read()[0]
    split = {"layer_slots": [layer.n_slots for layer in cache.layers]} if cache.states_budgets else {}
    values_per_token = 2 * len(cache.layers) * keys.shape[1] * keys.shape[3]
    return {
        "slots": statistics.fmean(layer.n_slots for layer in cache.layers),
        "resident_bytes": cache.nbytes // n_rows,
        "payload_bytes": cache.payload_nbytes // n_rows,
        "full_bf16_bytes": 2 * values_per_token * n_tokens,
        **split,
    }


def cache_history(cache: CompressedCache, n_rows: int) -> dict[str, int]:
    """Return the largest size that the cache has had, bytes per prompt, and how many tokens were written to it."""
    return {
        "peak_bytes": max(cache.peak_nbytes, cache.nbytes) // n_rows,
        "tokens_written": cache.tokens_written,
    }


def reserved_bytes(cache: CompressedCache, n_rows: int) -> dict[str, int]:
    """Return the memory that a cache of `n_rows` prompts holds with the room behind its slots, bytes per prompt.

    It belongs to how a cell ran and not to what it found: `cache_sizes` counts what is used.
    """
    return {"reserved_bytes": cache.reserved_nbytes // n_rows}


def retained_share(cache: CompressedCache, row: int, span: Sequence[int] | None) -> float | None:
    """Return the share of the tokens `span` of a prompt that is kept exactly, mean over layers and KV heads.

    None where the prompt has no such span. A slot that stands for several tokens keeps none of them exactly.
    """
    if span is None:
        return None
    start, stop = span
    shares = []
    for layer in cache.layers:
        positions = layer.positions()[row]
        kept = (positions >= start) & (positions < stop)
        if CLUSTER_SIZE in layer.slot_statistics:
            kept &= layer.slot_statistics[CLUSTER_SIZE][row] == 1
        shares.append(float(kept.sum()) / (positions.shape[0] * (stop - start)))
    return statistics.fmean(shares)


def decode_speed(step_seconds: Sequence[float], batch: int) -> dict[str, Any]:
    """Return the median duration of a decode step and the tokens per second of a batch; empty for fewer than two steps.

    The first step warms caches up and does not count; every row of the batch gets one token per step.
    """
    if len(step_seconds) < 2:
        return {}
    step = statistics.median(step_seconds[1:])
    return {"decode_step_seconds": step, "decode_tokens_per_s": batch / step, "decode_batch": batch}


def device_record(lm: LanguageModel) -> dict[str, str]:
    """Return where the model ran, and in which numbers."""
    kernels = torch.backends.cpu.get_cpu_capability() if lm.device.type == "cpu" else ""
    return {"device": lm.device.type, "dtype": str(lm.dtype).removeprefix("torch."), "kernels": kernels}


@dataclass
class Stopwatch:
    """Durations of the steps of a cell, `<name>_seconds` -> seconds."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to `<name>_seconds`."""
        before = time.perf_counter()
        yield
        key = f"{name}_seconds"
        self.seconds[key] = self.seconds.get(key, 0.0) + time.perf_counter() - before
