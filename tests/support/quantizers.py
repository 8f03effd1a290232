"""Every registered quantizer; a new file gets all generic tests."""

from __future__ import annotations

from kvatlas.compression.methods import quantizers

QUANTIZERS = quantizers()
# Bits of one value at a head dimension of 64 and of 128, scales and zeros included, without KIVI's residual.
BITS: dict[str, tuple[float, float]] = {
    "fp32": (32, 32),
    "fp16": (16, 16),
    "bf16": (16, 16),
    "fp8": (8, 8),
    "int8": (8.5, 8.25),
    "int4": (4.5, 4.25),
    "int2": (2.5, 2.25),
    "kivi4": (5, 5),
    "kivi2": (3, 3),
}
KIVI = ("kivi4", "kivi2")
