"""Where one layer keeps keys and values: what a store must do, and the one in full precision.

Quantized stores are in `kvatlas.compression.quantizers`. Knows no positions, statistics or policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import torch
from torch import Tensor

from kvatlas.errors import KvatlasError
from kvatlas.lm.growing import GrowingSlots


class KVStore(Protocol):
    """Where one layer keeps keys and values; slots that were written are never edited in place.

    `saturated` counts the values written so far that the storage format could not reach.
    """

    saturated: int

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values with scales and zero points, of all prompts; room behind them does not count."""

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
        """Yield every tensor that is held, `[B, K, ...]` each, the slots in use without the room behind them."""

    def unselectable_recent(self) -> int:
        """Return how many of the newest slots the storage format cannot evict (0 for most)."""


class PlainStore:
    """Keys and values as they come, in the model's dtype."""

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        self.keys, self.values = GrowingSlots(keys), GrowingSlots(values)
        self.saturated = 0

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write new slots."""
        self.keys.append(keys)
        self.values.append(values)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return all slots, as views of what is held."""
        if self.keys.used is None or self.values.used is None:
            raise KvatlasError("cache: it was read before anything was written to it")
        return self.keys.used, self.values.used

    def select(self, index: Tensor) -> None:
        """Keep the slots `index`."""
        keys, values = self.read()
        self.replace(take_slots(keys, index), take_slots(values, index))

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Write these slots instead of all others."""
        self.keys.replace(keys)
        self.values.replace(values)

    def fork(self) -> PlainStore:
        """Copy; what both have is shared."""
        twin = PlainStore()
        twin.keys, twin.values = self.keys.fork(), self.values.fork()
        return twin

    def tensors(self) -> Iterator[Tensor]:
        """Yield keys and values."""
        yield from (slots.used for slots in (self.keys, self.values) if slots.used is not None)

    def unselectable_recent(self) -> int:
        """Return 0: every slot can go."""
        return 0


def take_slots(tensor: Tensor, index: Tensor) -> Tensor:
    """Gather slots `index` `[B, K, n]` of a `[B, K, S]` or `[B, K, S, d]` tensor."""
    if tensor.dim() == 3:
        return tensor.gather(2, index)
    rows = _as_rows(tensor)
    if rows is None:
        return tensor.gather(2, index[..., None].expand(-1, -1, -1, tensor.shape[-1]))
    # Rows of other heads and prompts lie behind the last slot, so nothing else refuses an index that is out of range.
    if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < tensor.shape[2]:
        raise KvatlasError(f"cache: slots {int(index.min())} to {int(index.max())} of {tensor.shape[2]} were asked for")
    per_prompt, per_head, per_slot = (stride // tensor.shape[-1] for stride in tensor.stride()[:3])
    prompts, heads = (torch.arange(n, device=tensor.device) for n in tensor.shape[:2])
    row = prompts[:, None, None] * per_prompt + heads[:, None] * per_head + index * per_slot
    return rows.index_select(0, row.flatten()).view(*index.shape, tensor.shape[-1])


def _as_rows(tensor: Tensor) -> Tensor | None:
    """View `[B, K, S, d]` as the vectors that its memory is made of, `[rows, d]`; None where it is not.

    On a CPU, whole vectors are copied ten times faster than their elements one by one.
    """
    width, strides = tensor.shape[-1], tensor.stride()
    aligned = width > 0 and strides[-1] == 1 and all(stride % width == 0 for stride in strides[:3])
    if tensor.device.type != "cpu" or not aligned or not tensor.numel():
        return None
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape[:3], strides[:3], strict=True)) // width
    return tensor.as_strided((last + 1, width), (width, 1))
