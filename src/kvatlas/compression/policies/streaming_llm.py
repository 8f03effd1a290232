"""StreamingLLM: attention sinks and the newest tokens. arXiv 2309.17453.

The published method re-indexes positions inside the cache; `reindex` does that. The default keeps original positions,
so that it differs from the other methods in its selection alone. With original positions it is what other places call
sink + recent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.compression.selection import kept_slots
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("streaming_llm", label="StreamingLLM", source="arXiv 2309.17453", order=2)
@dataclass(frozen=True)
class StreamingLLM(EvictionPolicy):
    """The score is the position. With `reindex`, kept keys are rotated to their slot numbers, as published.

    Args:
        reindex: rotate the kept keys to their slot numbers, and count on from there.
    """

    reindex: bool = False

    @property
    def reindexes(self) -> bool:  # type: ignore[override]
        """Whether the next token's position is its slot number."""
        return self.reindex

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return each slot's original position `[B, K, S]`."""
        return layer.positions()

    def compress(self, layer: CompressedLayer, budget: SlotBudget, context: PromptContext) -> None:
        """Keep sinks and the newest slots; where positions are re-indexed, a slot's rotation is always its number."""
        index = kept_slots(self.scores(layer, context), budget)
        layer.select(index)
        if self.reindex:
            keys, values = layer.store.read()
            numbers = torch.arange(layer.n_slots, dtype=torch.float32, device=keys.device).expand(index.shape)
            layer.replace(context.rotary.move(keys, index.float(), numbers), values, layer.slot_statistics)
