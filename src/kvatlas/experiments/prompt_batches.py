"""Prompts as batches: rows of equal length that are written and answered together."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from kvatlas.lm.cache import CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel

Prompt = Mapping[str, Any]


def split_rows(n_rows: int, size: int) -> list[range]:
    """Split `n_rows` rows into runs of at most `size`."""
    return [range(start, min(start + size, n_rows)) for start in range(0, n_rows, size)]


def prompt_seed(prompt: Prompt) -> int:
    """Return a number that depends on which prompt it is, and on nothing else."""
    identity = f"{prompt['id']}".encode()
    return int.from_bytes(hashlib.sha256(identity).digest()[:8], "big") >> 1


def rarity_of(lm: LanguageModel, prompts: Sequence[Prompt]) -> Tensor:
    """Return how many digits and upper-case letters the text of each prompt token has, `[B, T]`."""
    ids = {token for prompt in prompts for token in prompt["ids"]}
    counts = {token: sum(c.isdigit() or c.isupper() for c in lm.tokenizer.decode([token])) for token in ids}
    return torch.tensor([[counts[token] for token in prompt["ids"]] for prompt in prompts], device=lm.device)


def compressed_tokens(lm: LanguageModel, prompts: Sequence[Prompt]) -> Tensor:
    """Return the prompt tokens that are written before the compression, `[B, n_compress]`."""
    return lm.ids([prompt["ids"][: prompts[0]["n_compress"]] for prompt in prompts])


def uncached_tokens(lm: LanguageModel, prompts: Sequence[Prompt]) -> Tensor:
    """Return the prompt tokens that are fed after the compression, `[B, q]`."""
    return lm.ids([prompt["ids"][prompt["n_compress"] :] for prompt in prompts])


def prefill(lm: LanguageModel, prompts: Sequence[Prompt], observation: Observation, block: int) -> CompressedCache:
    """Run the compressed part of prompts through the model in blocks of queries (0: at once); returns the full cache."""
    cache = lm.new_cache(observation)
    lm.prefill(compressed_tokens(lm, prompts), cache, block)
    return cache


def fork_unobserved(cache: CompressedCache) -> CompressedCache:
    """Return a fork that keeps no more statistics: what follows the prompt must not change what a policy sees."""
    fork = cache.fork()
    fork.stop_observing()
    return fork
