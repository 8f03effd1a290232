"""Stores whose slots are coded one by one: what a slot holds depends on that slot's key and value alone.

Eviction gathers codes and never decodes them, so a slot is rounded once, when it is written. A store that is told to
forget everything and write other slots (centroids, re-indexed keys) codes those anew. `packed` storage holds the codes;
`simulated` holds the rounded floats, reads the same bits and reports the bytes that the codes would take.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Literal, Protocol

import torch
from torch import Tensor

from kvatlas.errors import KvatlasError
from kvatlas.lm.growing import GrowingSlots
from kvatlas.lm.stores import take_slots

Storage = Literal["packed", "simulated"]
Parts = tuple[Tensor, ...]


class SlotCodec(Protocol):
    """How one slot's vector is coded."""

    def encode(self, values: Tensor) -> Parts:
        """Code `[B, K, S, d]`; every part is `[B, K, S, *]`."""

    def decode(self, parts: Parts) -> Tensor:
        """Return `[B, K, S, d]` floats of the parts."""

    def slot_nbytes(self, width: int) -> int:
        """Return the bytes of one slot's parts at head dimension `width`."""

    def saturations(self, values: Tensor) -> int:
        """Count the values that the format cannot reach and that are clamped."""


class CodedSlots:
    """Keys or values of one layer under one codec; slots that were written are never edited."""

    def __init__(self, codec: SlotCodec, storage: Storage) -> None:
        self.codec, self.storage = codec, storage
        self.growing: tuple[GrowingSlots, ...] = ()
        self.width = 0

    @property
    def parts(self) -> Parts:
        """What is held of the slots in use, `[B, K, S, *]` each; empty before the first write."""
        return tuple(part.used for part in self.growing if part.used is not None)

    def coded(self, values: Tensor) -> Parts:
        """Return what this storage holds of new slots."""
        parts = self.codec.encode(values)
        return parts if self.storage == "packed" else (self.codec.decode(parts).to(values.dtype),)

    def append(self, values: Tensor) -> None:
        """Write new slots."""
        new = self.coded(values)
        self.growing = self.growing or tuple(GrowingSlots() for _ in new)
        for part, slots in zip(self.growing, new, strict=True):
            part.append(slots)
        self.width = values.shape[-1]

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return all slots as floats."""
        return (self.codec.decode(self.parts) if self.storage == "packed" else self.parts[0]).to(dtype)

    def select(self, index: Tensor) -> None:
        """Keep the slots `index`."""
        self.growing = tuple(GrowingSlots(take_slots(part, index)) for part in self.parts)

    def clear(self) -> None:
        """Forget all slots."""
        self.growing = ()

    def fork(self) -> CodedSlots:
        """Copy; what both have is shared."""
        twin = copy(self)
        twin.growing = tuple(part.fork() for part in self.growing)
        return twin

    @property
    def n_slots(self) -> int:
        """Slots held."""
        return self.growing[0].n_slots if self.growing else 0

    @property
    def nbytes(self) -> int:
        """Bytes of the packed codes with their scales and zeros."""
        parts = self.parts
        if self.storage == "packed" or not parts:
            return sum(part.nbytes for part in parts)
        slots = sum(part.shape[0] * part.shape[1] * part.shape[2] for part in parts)
        return slots * self.codec.slot_nbytes(self.width)


class SlotStore:
    """Keys and values under the same slot-wise codec.

    Args:
        codec: the format. storage: `packed` or `simulated`.
    """

    def __init__(self, codec: SlotCodec, storage: Storage = "packed") -> None:
        self.keys, self.values = CodedSlots(codec, storage), CodedSlots(codec, storage)
        self.dtype = torch.float32
        self.saturated = 0

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write new slots through the quantizer."""
        self.dtype = keys.dtype
        self.saturated += self.keys.codec.saturations(keys) + self.keys.codec.saturations(values)
        self.keys.append(keys)
        self.values.append(values)

    def read(self) -> tuple[Tensor, Tensor]:
        """Return all slots, decoded for this one read."""
        if not self.keys.n_slots:
            raise KvatlasError("cache: it was read before anything was written to it")
        return self.keys.read(self.dtype), self.values.read(self.dtype)

    def select(self, index: Tensor) -> None:
        """Keep the slots `index`; nothing is rounded again."""
        self.keys.select(index)
        self.values.select(index)

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Write these slots instead, through the quantizer."""
        self.keys.clear()
        self.values.clear()
        self.append(keys, values)

    def fork(self) -> SlotStore:
        """Return a copy; what both have is shared, because it is never edited in place."""
        twin = copy(self)
        twin.keys, twin.values = self.keys.fork(), self.values.fork()
        return twin

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that is held."""
        yield from (*self.keys.parts, *self.values.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of the codes with scales and zeros, of all prompts; the same for both storages."""
        return self.keys.nbytes + self.values.nbytes

    def unselectable_recent(self) -> int:
        """Return 0: every slot can go."""
        return 0
