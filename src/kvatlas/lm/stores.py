"""Where one layer keeps keys and values: what a store must do, and the one in full precision.

Quantized stores are in `kvatlas.compression.quantizers`. Knows no positions, statistics or policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import torch
from torch import Tensor

from kvatlas.errors import KvatlasError


class KVStore(Protocol):
    """Where one layer keeps keys and values; every method returns or replaces tensors and never edits them in place.

    `saturated` counts the values written so far that the storage format could not reach.
    """

    saturated: int

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values with scales and zero points, of all prompts."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write new slots, `[B, K, Q, d]` each."""

    def read(self) -> tuple[Tensor, Tensor]:
        """Return keys and values of all slots, `[B, K, S, d]` each, in the model's dtype."""

    def select(self, index: Tensor) -> None:
        """Keep the slots `index` `[B, K, n]` of each head, in that order."""

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Forget all slots and write these instead, `[B, K, S', d]` each."""

    def fork(self) -> Self:
        """Return a copy that can be written without changing this one."""

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that is held, `[B, K, ...]` each."""

    def unselectable_recent(self) -> int:
        """Return how many of the newest slots the storage format cannot evict (0 for most)."""


class PlainStore:
    """Keys and values as they come, in the model's dtype."""

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        self.keys, self.values = keys, values
        self.saturated = 0

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write new slots."""
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=2)
        self.values = values if self.values is None else torch.cat([self.values, values], dim=2)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return all slots."""
        if self.keys is None or self.values is None:
            raise KvatlasError("cache: it was read before anything was written to it")
        return self.keys, self.values

    def select(self, index: Tensor) -> None:
        """Keep the slots `index`."""
        keys, values = self.read()
        self.keys, self.values = take_slots(keys, index), take_slots(values, index)

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Write these slots instead of all others."""
        self.keys, self.values = keys, values

    def fork(self) -> PlainStore:
        """Copy; the tensors are shared, because they are never edited in place."""
        return PlainStore(self.keys, self.values)

    def tensors(self) -> Iterator[Tensor]:
        """Yield keys and values."""
        yield from (tensor for tensor in (self.keys, self.values) if tensor is not None)

    def unselectable_recent(self) -> int:
        """Return 0: every slot can go."""
        return 0


def take_slots(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather slots `index` `[B, K, n]` of a `[B, K, S]` or `[B, K, S, d]` tensor."""
    if tensor.dim() == 3:
        return tensor.gather(2, index)
    return tensor.gather(2, index[..., None].expand(-1, -1, -1, tensor.shape[-1]))
