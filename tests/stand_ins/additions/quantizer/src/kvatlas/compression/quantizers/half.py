"""Sixteen-bit floats under another name."""

from kvatlas.compression.methods import QuantizerRegistration
from kvatlas.compression.quantizers.base import SlotStore, Storage
from kvatlas.compression.quantizers.cast import fp16


@QuantizerRegistration("half", bits=16)
def half(storage: Storage = "packed") -> SlotStore:
    """Store fp16."""
    return fp16(storage)
