"""Sink + recent: attention sinks and the newest tokens at their original positions. The baseline of every grid."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@dataclass(frozen=True)
class SinkRecent(EvictionPolicy):
    """The score is the position: sinks stay, and the rest of the budget goes to the newest slots."""

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return each slot's original position `[B, K, S]`."""
        return layer.positions()
