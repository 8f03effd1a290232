"""Floating-point formats: fp32, fp16, bf16, and FP8 E4M3 without a scale.

Values beyond the largest finite number of a format are clamped to it and counted. E4M3 ends at 448: keys of models
with large key biases come near it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvatlas.compression.methods import QuantizerRegistration
from kvatlas.compression.quantizers.base import Parts, SlotStore, Storage


@dataclass(frozen=True)
class Cast:
    """Round to a floating-point format, saturating."""

    dtype: torch.dtype

    @property
    def limit(self) -> float:
        """The largest finite number of the format."""
        return float(torch.finfo(self.dtype).max)

    def encode(self, values: Tensor) -> Parts:
        """Return the rounded values; 8-bit floats as bytes, because few operations know their type."""
        rounded = values.clamp(-self.limit, self.limit).to(self.dtype)
        return (rounded.view(torch.uint8) if self.dtype.itemsize == 1 else rounded,)

    def decode(self, parts: Parts) -> Tensor:
        """Return the values as fp32."""
        stored = parts[0].view(self.dtype) if self.dtype.itemsize == 1 else parts[0]
        return stored.to(torch.float32)

    def slot_nbytes(self, width: int) -> int:
        """Return the bytes of one slot."""
        return width * self.dtype.itemsize

    def saturations(self, values: Tensor) -> int:
        """Count the values beyond the largest finite number."""
        if self.dtype.itemsize >= values.dtype.itemsize:
            return 0
        return int((values.abs() > self.limit).sum())


@QuantizerRegistration("fp32", bits=32)
def fp32(storage: Storage = "packed") -> SlotStore:
    """Store fp32: 32 bits per value, the control."""
    return SlotStore(Cast(torch.float32), storage)


@QuantizerRegistration("fp16", bits=16)
def fp16(storage: Storage = "packed") -> SlotStore:
    """Store fp16: 16 bits per value."""
    return SlotStore(Cast(torch.float16), storage)


@QuantizerRegistration("bf16", bits=16)
def bf16(storage: Storage = "packed") -> SlotStore:
    """Store bf16: 16 bits per value, as in the deployed cache."""
    return SlotStore(Cast(torch.bfloat16), storage)


@QuantizerRegistration("fp8", bits=8, source="arXiv 2209.05433")
def fp8(storage: Storage = "packed") -> SlotStore:
    """Store FP8 E4M3 without a scale: 8 bits per value, saturating at 448; saturations are counted."""
    return SlotStore(Cast(torch.float8_e4m3fn), storage)
