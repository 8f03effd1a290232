"""A tensor of slots that grows at its end: what is appended is written behind what is there, which is not copied.

The slots in use are a view of a buffer with room behind them; a full buffer is replaced by one an eighth larger than
needed, so that n appends copy each slot a bounded number of times. Forks read the same buffer. The first of them that
appends owns the room, and the others copy before they write: what has been written is never edited, whoever reads it.
Knows nothing of keys, values or formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvatlas.errors import KvatlasError

# Room behind the slots in use: an eighth of them, and this many at least.
ROOM_SHARE = 8
MIN_ROOM = 16


@dataclass(slots=True)
class _Buffer:
    """Memory that forks share, `[B, K, C, *]`, and how many of its slots one of them has written."""

    memory: Tensor
    written: int

    def has_room(self, first: int, stop: int) -> bool:
        """Say whether slots `first` to `stop` can be written without touching what anyone reads."""
        # PyTorch refuses to write to tensors of inference mode outside of it.
        writable = torch.is_inference_mode_enabled() or not self.memory.is_inference()
        return writable and self.written == first and stop <= self.memory.shape[2]


class GrowingSlots:
    """A `[B, K, S, *]` tensor that slots are appended to.

    `used` are the slots that were written, None before the first; it is a view that nobody edits.
    """

    def __init__(self, used: Tensor | None = None) -> None:
        self.used: Tensor | None = None
        self._buffer: _Buffer | None = None
        if used is not None:
            self.replace(used)

    @property
    def n_slots(self) -> int:
        """Slots in use."""
        return 0 if self.used is None else self.used.shape[2]

    def replace(self, slots: Tensor) -> None:
        """Hold `slots` `[B, K, S, *]` instead, as they lie in memory and without room behind them."""
        # A view of something larger would keep all of that in memory.
        part_of_more = slots.untyped_storage().nbytes() > slots.nbytes
        self.used, self._buffer = slots.clone() if part_of_more else slots, None

    def append(self, new: Tensor) -> None:
        """Write `new` `[B, K, n, *]` behind the slots in use. Raises KvatlasError when it does not fit to them."""
        if self.used is None:
            self.replace(new)
            return
        _require_alike(self.used, new)
        first, stop = self.n_slots, self.n_slots + new.shape[2]
        if self._buffer is None or not self._buffer.has_room(first, stop):
            self._buffer = _enlarged(self.used, stop)
        self._buffer.memory[:, :, first:stop].copy_(new)
        self._buffer.written = stop
        self.used = self._buffer.memory[:, :, :stop]

    def fork(self) -> GrowingSlots:
        """Return a copy that shares the buffer; either can be appended to without changing the other."""
        twin = GrowingSlots()
        twin.used, twin._buffer = self.used, self._buffer
        return twin


def _enlarged(used: Tensor, n_slots: int) -> _Buffer:
    """Return a buffer that begins with `used` and has room behind `n_slots` slots."""
    shape = list(used.shape)
    shape[2] = n_slots + max(MIN_ROOM, n_slots // ROOM_SHARE)
    memory = used.new_empty(shape)
    memory[:, :, : used.shape[2]].copy_(used)
    return _Buffer(memory, used.shape[2])


def _require_alike(used: Tensor, new: Tensor) -> None:
    # A copy would round or repeat what a concatenation refuses.
    same = used.dtype == new.dtype and used.shape[:2] == new.shape[:2] and used.shape[3:] == new.shape[3:]
    if not same:
        raise KvatlasError(
            f"cache: slots {list(new.shape)} of {new.dtype} cannot be written behind {list(used.shape)} of {used.dtype}; "
            "write what one model in one dtype makes of one batch"
        )
