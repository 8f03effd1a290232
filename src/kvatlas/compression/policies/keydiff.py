"""KeyDiff: keys that differ from the average direction of all keys stay. arXiv 2504.15364.

The anchor is the mean of the normalised keys over all slots of a head, newest and protected ones included. The paper
streams a prompt in blocks and compresses after each: that is the schedule `every_block`, not part of the score.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("keydiff", label="KeyDiff", source="arXiv 2504.15364", order=10)
@dataclass(frozen=True)
class KeyDiff(EvictionPolicy):
    """The score is minus the cosine of the key and the mean of all normalised keys of its head."""

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return minus the cosine similarity of each key to the anchor, `[B, K, S]`."""
        keys = layer.store.read()[0].float()
        anchor = F.normalize(keys, dim=-1).mean(dim=2, keepdim=True)
        return -torch.cosine_similarity(keys, anchor, dim=-1)
