"""KIVI: keys scaled per channel over 32 tokens, values per token over 32 channels, residual fp16. arXiv 2402.02750.

Tokens wait in an fp16 residual until 32 of them can be coded while at least 32 stay, so the residual holds 32 to 63. A
slot is never coded twice: a coded slot keeps its packed codes and the number of the group whose scales it was coded
with; eviction gathers codes and numbers, and drops groups of which no slot is left. All heads hold as many groups as
the head with the most live ones. The residual cannot be evicted (`unselectable_recent`).

Deviation from the paper's code: keys and values are coded in the same pass, on write, so that the residual is common to
both. A store that is told to write other slots instead (centroids) groups those anew, in the order in which they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

import torch
from torch import Tensor

from kvatlas.compression.affine import affine_decode, affine_encode, pack, unpack
from kvatlas.compression.methods import QuantizerRegistration
from kvatlas.compression.quantizers.base import CodedSlots, Storage
from kvatlas.compression.quantizers.integer import Integer
from kvatlas.errors import KvatlasError
from kvatlas.lm.growing import GrowingSlots
from kvatlas.lm.stores import take_slots

GROUP = 32
INDEX_DTYPE = torch.int16


class GroupedKeys:
    """Coded keys of one layer with the scales of their groups.

    `codes` are packed `[B, K, S, d * bits / 8]`, or the rounded floats `[B, K, S, d]` in simulated storage. `scales`
    and `zeros` are `[B, K, N, d]` fp16 (absent in simulated storage). `group` `[B, K, S]` int16 is the number of each
    slot's group; None while nothing was evicted, when slot s is in group s // 32.
    """

    def __init__(self, bits: int, storage: Storage) -> None:
        self.bits, self.storage = bits, storage
        self.growing = {name: GrowingSlots() for name in ("codes", "scales", "zeros", "group")}
        self.n_groups = self.width = 0

    @property
    def codes(self) -> Tensor | None:
        """Packed codes, or rounded floats."""
        return self.growing["codes"].used

    @property
    def scales(self) -> Tensor | None:
        """Scales of the groups."""
        return self.growing["scales"].used

    @property
    def zeros(self) -> Tensor | None:
        """Zeros of the groups."""
        return self.growing["zeros"].used

    @property
    def group(self) -> Tensor | None:
        """Number of each slot's group."""
        return self.growing["group"].used

    @property
    def n_slots(self) -> int:
        """Coded slots."""
        return 0 if self.codes is None else self.codes.shape[2]

    def append(self, keys: Tensor) -> None:
        """Code whole groups of new keys, `[B, K, n * 32, d]`."""
        n_new, self.width = keys.shape[2] // GROUP, keys.shape[3]
        codes, scale, zero = affine_encode(keys.unflatten(2, (n_new, GROUP)), self.bits, dim=3)
        if self.storage == "packed":
            new = pack(codes.flatten(2, 3), self.bits)
            self.growing["scales"].append(scale[:, :, :, 0])
            self.growing["zeros"].append(zero[:, :, :, 0])
        else:
            new = affine_decode(codes, scale, zero).flatten(2, 3).to(keys.dtype)
        if self.group is not None:
            numbers = torch.arange(self.n_groups, self.n_groups + n_new, device=keys.device, dtype=INDEX_DTYPE)
            self.growing["group"].append(numbers.repeat_interleave(GROUP).expand(*self.group.shape[:2], -1))
        self.growing["codes"].append(new)
        self.n_groups += n_new

    def read(self) -> Tensor:
        """Return all coded keys as floats `[B, K, S, d]`; only where there are some."""
        if self.codes is None:
            raise KvatlasError("cache: coded keys were read before any were written")
        if self.storage == "simulated" or self.scales is None or self.zeros is None:
            return self.codes
        group = self._numbers()
        return affine_decode(
            unpack(self.codes, self.bits), take_slots(self.scales, group), take_slots(self.zeros, group)
        )

    def select(self, index: Tensor) -> None:
        """Keep the coded slots `index` and the groups that they need."""
        if self.codes is None:
            return
        group = self._numbers().gather(2, index)
        self.growing["codes"].replace(take_slots(self.codes, index))
        live = torch.zeros(*group.shape[:2], self.n_groups, dtype=torch.bool, device=group.device)
        live.scatter_(2, group, True)
        self.n_groups = int(live.sum(dim=2).max()) if index.shape[2] else 0
        kept = (~live).to(torch.int8).sort(dim=2, stable=True).indices[..., : self.n_groups]
        if self.scales is not None and self.zeros is not None:
            self.growing["scales"].replace(take_slots(self.scales, kept))
            self.growing["zeros"].replace(take_slots(self.zeros, kept))
        self.growing["group"].replace((live.cumsum(dim=2) - 1).gather(2, group).to(INDEX_DTYPE))

    def fork(self) -> GroupedKeys:
        """Copy; what both have is shared."""
        twin = copy(self)
        twin.growing = {name: slots.fork() for name, slots in self.growing.items()}
        return twin

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that is held."""
        yield from (slots.used for slots in self.growing.values() if slots.used is not None)

    @property
    def nbytes(self) -> int:
        """Bytes of packed codes, scales, zeros and group numbers."""
        if self.storage == "packed" or self.codes is None:
            return sum(tensor.nbytes for tensor in self.tensors())
        heads = self.codes.shape[0] * self.codes.shape[1]
        numbers = 0 if self.group is None else self.group.nbytes
        return heads * (self.n_slots * self.width * self.bits // 8 + self.n_groups * self.width * 4) + numbers

    def _numbers(self) -> Tensor:
        if self.codes is None:
            raise KvatlasError("cache: coded keys were read before any were written")
        if self.group is not None:
            return self.group.long()
        return (torch.arange(self.n_slots, device=self.codes.device) // GROUP).expand(*self.codes.shape[:2], -1)


class KiviStore:
    """Keys and values of one layer in KIVI's format.

    Args:
        bits: 4 or 2. storage: `packed` or `simulated`.
    """

    def __init__(self, bits: int, storage: Storage = "packed") -> None:
        self.bits, self.storage = bits, storage
        self.keys = GroupedKeys(bits, storage)
        self.values = CodedSlots(Integer(bits, GROUP), storage)
        self.residual: tuple[Tensor, Tensor] | None = None
        self.dtype = torch.float32
        self.saturated = 0

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write new slots: to the residual in fp16, and from there to codes as soon as it holds 64."""
        self.dtype = keys.dtype
        self.saturated += self.values.codec.saturations(keys) + self.values.codec.saturations(values)
        limit = torch.finfo(torch.float16).max
        new = tuple(tensor.clamp(-limit, limit).half() for tensor in (keys, values))
        old = self.residual or (None, None)
        waiting_keys, waiting_values = (_joined(a, b) for a, b in zip(old, new, strict=True))
        n_coded = max(0, waiting_keys.shape[2] // GROUP - 1) * GROUP
        if n_coded:
            self.keys.append(waiting_keys[:, :, :n_coded].to(self.dtype))
            self.values.append(waiting_values[:, :, :n_coded].to(self.dtype))
        # Copied, because a view would keep the coded tokens' fp16 values in memory.
        self.residual = (waiting_keys[:, :, n_coded:].clone(), waiting_values[:, :, n_coded:].clone())

    def read(self) -> tuple[Tensor, Tensor]:
        """Return all slots, decoded for this one read."""
        if self.residual is None:
            raise KvatlasError("cache: it was read before anything was written to it")
        keys, values = (tensor.to(self.dtype) for tensor in self.residual)
        if not self.keys.n_slots:
            return keys, values
        coded = self.keys.read().to(self.dtype), self.values.read(self.dtype)
        return torch.cat([coded[0], keys], dim=2), torch.cat([coded[1], values], dim=2)

    def select(self, index: Tensor) -> None:
        """Keep the slots `index`, which must end with the whole residual. Raises KvatlasError when they do not."""
        n_coded, n_residual = self.keys.n_slots, self.unselectable_recent()
        n_kept = index.shape[2] - n_residual
        tail = torch.arange(n_coded, n_coded + n_residual, device=index.device)
        if n_kept < 0 or not bool((index[..., n_kept:] == tail).all()):
            raise KvatlasError(f"quantizer: the {n_residual} newest slots of a KIVI cache cannot be evicted")
        self.keys.select(index[..., :n_kept])
        self.values.select(index[..., :n_kept])

    def replace(self, keys: Tensor, values: Tensor) -> None:
        """Write these slots instead, grouped anew."""
        self.keys = GroupedKeys(self.bits, self.storage)
        self.values = CodedSlots(self.values.codec, self.storage)
        self.residual = None
        self.append(keys, values)

    def fork(self) -> KiviStore:
        """Return a copy; what both have is shared, because it is never edited in place."""
        twin = copy(self)
        twin.keys, twin.values = self.keys.fork(), self.values.fork()
        return twin

    def tensors(self) -> Iterator[Tensor]:
        """Yield every tensor that is held."""
        yield from (*self.keys.tensors(), *self.values.parts, *(self.residual or ()))

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, zeros, group numbers and residual, of all prompts; the same for both storages."""
        return self.keys.nbytes + self.values.nbytes + sum(tensor.nbytes for tensor in self.residual or ())

    def unselectable_recent(self) -> int:
        """Return the number of slots in the residual."""
        return 0 if self.residual is None else self.residual[0].shape[2]


def _joined(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else torch.cat([old, new], dim=2)


@QuantizerRegistration("kivi4", bits=4, granularity="keys per channel", source="arXiv 2402.02750")
def kivi4(storage: Storage = "packed") -> KiviStore:
    """Store 4-bit codes of keys per channel over 32 tokens, and of values per token over 32 channels.

    5 bits per value, and the newest 32 to 63 tokens in fp16.
    """
    return KiviStore(4, storage)


@QuantizerRegistration("kivi2", bits=2, granularity="keys per channel", source="arXiv 2402.02750")
def kivi2(storage: Storage = "packed") -> KiviStore:
    """Store 2-bit codes of keys per channel over 32 tokens, and of values per token over 32 channels.

    3 bits per value, and the newest 32 to 63 tokens in fp16.
    """
    return KiviStore(2, storage)
