"""The pooled vote of the observation window, which SnapKV and the clustering policies share.

Attention is softmaxed over all slots, summed over the window, averaged over the query heads of a KV head, and pooled
over neighbouring slots with stride 1 and zero padding (SnapKV, arXiv 2404.14469). It is apart from the policies, so that
editing one of them changes no other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CompressedLayer, Observation, vote_name


@dataclass(frozen=True)
class WindowVote:
    """The pooled vote of the observation window.

    Args:
        window: queries that vote. kernel: odd width of the pooling, 1 for none. pooling: `avg` or `max`.
    """

    window: int = 16
    kernel: int = 7
    pooling: Literal["avg", "max"] = "avg"

    def __post_init__(self) -> None:
        if self.window < 1:
            raise KvatlasError(f"window: {self.window} queries cannot vote; use at least 1")
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise KvatlasError(f"kernel: {self.kernel} has no middle; use an odd number")

    def observation(self) -> Observation:
        """Ask for the window's votes."""
        return Observation(windows=(self.window,))

    def pooled_vote(self, layer: CompressedLayer) -> Tensor:
        """Return the vote of each slot `[B, K, S]`, pooled before the window and as it is inside.

        Raises KvatlasError when the window is as long as the cache.
        """
        vote = layer.slot_statistics[vote_name(self.window)]
        n_before = layer.n_slots - self.window
        if n_before <= 0:
            raise KvatlasError(
                f"window: {self.window} queries vote, but the cache holds {layer.n_slots} slots; use a smaller window"
            )
        pool = F.avg_pool1d if self.pooling == "avg" else F.max_pool1d
        pooled = pool(vote[..., :n_before], self.kernel, stride=1, padding=self.kernel // 2)
        return torch.cat([pooled, vote[..., n_before:]], dim=-1)

    def selection_scores(self, layer: CompressedLayer) -> Tensor:
        """Return the pooled vote `[B, K, S]`, infinite inside the window, whose slots always stay."""
        scores = self.pooled_vote(layer).clone()
        scores[..., layer.n_slots - self.window :] = torch.inf
        return scores
