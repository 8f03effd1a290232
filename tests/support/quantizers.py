"""Every registered quantizer; a new file gets all generic tests."""

from __future__ import annotations

import math

from kvatlas.compression.methods import quantizers

QUANTIZERS = quantizers()
SCALE_AND_ZERO = 32
"""Bits of an fp16 scale and an fp16 zero."""
GROUP = 32
"""Tokens, or channels, that share a scale and zero where keys are scaled per channel."""
KIVI = tuple(name for name, registration in QUANTIZERS.items() if registration.granularity == "keys per channel")


def bits_per_value(name: str, head_dim: int) -> float:
    """Bits of one stored value, scales and zeros included; scales that are shared otherwise need a line here."""
    registration = QUANTIZERS[name]
    sharing = {"": math.inf, "keys per token": head_dim, "keys per channel": GROUP}[registration.granularity]
    return registration.bits + SCALE_AND_ZERO / sharing
