"""An arm on a model: the empty cache that it fills, and the compressor that brings a cache back to its budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy, make_store
from kvatlas.lm.cache import CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel


def observation_of(spec: Mapping[str, Any]) -> Observation:
    """Return the attention statistics that the arm's policy reads; none for the full cache."""
    policy = make_policy(spec["policy"])
    return policy.observation() if policy else Observation()


def new_cache(spec: Mapping[str, Any], lm: LanguageModel) -> CompressedCache:
    """Return the empty cache of an arm: its policy's statistics, its quantizer's stores."""
    return lm.new_cache(observation_of(spec), make_store(spec["quantizer"], spec.get("storage", "packed")))


def new_compressor(
    spec: Mapping[str, Any], lm: LanguageModel, n_tokens: int, seeds: Sequence[int], rarity: Tensor | None = None
) -> Compressor:
    """Return what brings the arm's cache back to its budget.

    Args:
        n_tokens: the context that a ratio or share refers to. seeds: one number per prompt.
        rarity: `[B, T]`, see `PromptContext`.
    """
    policy = make_policy(spec["policy"])
    budget = Budget.from_spec(spec) if policy else None
    return Compressor(policy, budget, n_tokens, lm.rotary, seeds, rarity)
