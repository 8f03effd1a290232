"""SnapKV: the last queries of the prompt vote, and neighbours are kept together. arXiv 2404.14469.

The observation window (the queries that vote) and the protected recent window (slots that stay) are two parameters.
Only slots before the window compete; those inside always stay.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.compression.window_vote import WindowVote
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("snapkv", label="SnapKV", source="arXiv 2404.14469", order=4)
@dataclass(frozen=True)
class SnapKV(WindowVote, EvictionPolicy):
    """The score is the attention of the last `window` queries, pooled over `kernel` neighbours.

    Softmax over all slots, sum over queries, group mean; average pooling, stride 1, zero padding. Slots inside the
    window always stay.
    """

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return the pooled vote `[B, K, S]`."""
        return self.selection_scores(layer)
