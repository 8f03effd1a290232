"""Sink + recent: attention sinks and the newest tokens at their original positions. The baseline of every grid."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("sink_recent", label="Sink + recent", source="baseline", order=16)
@PolicyRegistration("attention_sink", label="Attention sink", source="baseline", order=14)
@dataclass(frozen=True)
class SinkRecent(EvictionPolicy):
    """The score is the position: sinks and the newest tokens stay, at their original positions. It has two names."""

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return each slot's original position `[B, K, S]`."""
        return layer.positions()
