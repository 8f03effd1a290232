"""Heavy hitter: the largest accumulated attention, with nothing protected. The task suite's control.

This is H2O's (arXiv 2306.14048) raw sum without its recent half. The sum favours old slots, which have seen more
queries: a new slot competes with one query's attention, so late tokens go first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import ATTENTION, CompressedLayer, Observation


@PolicyRegistration("heavy_hitter", label="Heavy hitter", source="control", order=12)
@dataclass(frozen=True)
class HeavyHitter(EvictionPolicy):
    """The score is the attention received so far, as a sum; neither sinks nor recent slots are protected."""

    protects_sinks: ClassVar[bool] = False
    protects_recent: ClassVar[bool] = False

    def observation(self) -> Observation:
        """Ask for the cumulative attention."""
        return Observation(cumulative=True)

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return accumulated attention `[B, K, S]`."""
        return layer.slot_statistics[ATTENTION]
