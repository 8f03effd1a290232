"""Integers of 8, 4 or 2 bits with one scale and zero per (token, head): b + 32 / d bits per value.

Keys are scaled per token here. Where a few channels are much larger than the others (the key biases of Qwen2.5), they
set the scale of the whole token; `kivi` scales keys per channel instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvatlas.compression.affine import HALF_LIMIT, affine_decode, affine_encode, pack, unpack
from kvatlas.compression.methods import QuantizerRegistration
from kvatlas.compression.quantizers.base import Parts, SlotStore, Storage
from kvatlas.errors import KvatlasError


@dataclass(frozen=True)
class Integer:
    """Asymmetric integers with an fp16 scale and an fp16 zero per group of channels of one token and head.

    Args:
        bits: 8, 4 or 2. group: channels that share a scale and zero; 0 is the whole head.
    """

    bits: int
    group: int = 0

    def encode(self, values: Tensor) -> Parts:
        """Return packed codes `[B, K, S, d * bits / 8]`, scales and zeros `[B, K, S, d / group]`."""
        width = values.shape[-1]
        group = self._group(width)
        codes, scale, zero = affine_encode(values.unflatten(-1, (width // group, group)), self.bits, dim=-1)
        return pack(codes.flatten(-2), self.bits), scale[..., 0], zero[..., 0]

    def decode(self, parts: Parts) -> Tensor:
        """Return the values as fp32."""
        packed, scale, zero = parts
        codes = unpack(packed, self.bits)
        groups = codes.unflatten(-1, (scale.shape[-1], codes.shape[-1] // scale.shape[-1]))
        return affine_decode(groups, scale[..., None], zero[..., None]).flatten(-2)

    def slot_nbytes(self, width: int) -> int:
        """Return the bytes of one slot."""
        return width * self.bits // 8 + 4 * (width // self._group(width))

    def saturations(self, values: Tensor) -> int:
        """Count the values beyond the fp16 scales and zeros."""
        return int((values.abs() > HALF_LIMIT).sum())

    def _group(self, width: int) -> int:
        group = min(self.group or width, width)
        if width % group or width * self.bits % 8:
            raise KvatlasError(
                f"quantizers: a head of {width} channels cannot be coded in {self.bits} bits and groups of {group}; "
                "use int8, or a model whose head dimension is a multiple of 32"
            )
        return group


@QuantizerRegistration("int8", bits=8, granularity="keys per token")
def int8(storage: Storage = "packed") -> SlotStore:
    """Store 8-bit integers, scaled per token and head: 8.5 bits per value at d = 64, 8.25 at 128."""
    return SlotStore(Integer(8), storage)


@QuantizerRegistration("int4", bits=4, granularity="keys per token")
def int4(storage: Storage = "packed") -> SlotStore:
    """Store 4-bit integers, scaled per token and head: 4.5 bits per value at d = 64, 4.25 at 128."""
    return SlotStore(Integer(4), storage)


@QuantizerRegistration("int2", bits=2, granularity="keys per token")
def int2(storage: Storage = "packed") -> SlotStore:
    """Store 2-bit integers, scaled per token and head: 2.5 bits per value at d = 64, 2.25 at 128."""
    return SlotStore(Integer(2), storage)
