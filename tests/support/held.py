"""The tensors that a cache holds, counted from outside."""

from __future__ import annotations

import torch

from kvatlas.lm.cache import CompressedCache


def held_nbytes(cache: CompressedCache) -> int:
    """Bytes of every tensor reachable from the cache, found without asking it."""
    seen: dict[int, int] = {}

    def visit(value: object) -> None:
        if isinstance(value, torch.Tensor):
            seen[id(value)] = value.numel() * value.element_size()
        elif isinstance(value, dict):
            list(map(visit, value.values()))
        elif isinstance(value, (list, tuple)):
            list(map(visit, value))
        elif type(value).__module__.startswith("kvatlas") and hasattr(value, "__dict__"):
            list(map(visit, vars(value).values()))

    visit(cache.layers)
    return sum(seen.values())
