"""TOVA: what the last query looks at stays, the same slots in every head of a layer. arXiv 2401.06104.

The vote is that of the last query alone, the mean over all query heads, so that a layer keeps one set of tokens. The
slot of the query that votes always stays; the paper lets it compete, where its own attention nearly always saves it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CompressedLayer, Observation, vote_name


@PolicyRegistration("tova", label="TOVA", source="arXiv 2401.06104", order=11)
@dataclass(frozen=True)
class TOVA(EvictionPolicy):
    """The score is the attention of the last query, mean over all heads, so that a layer keeps one set of tokens.

    Args:
        window: queries that vote; 1 in the paper.
    """

    window: int = 1

    def __post_init__(self) -> None:
        if self.window < 1:
            raise KvatlasError(f"window: {self.window} queries cannot vote; use at least 1")

    def observation(self) -> Observation:
        """Ask for the last query's attention."""
        return Observation(windows=(self.window,))

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return the vote `[B, K, S]`, equal in all heads and infinite inside the window, whose slots always stay."""
        vote = layer.slot_statistics[vote_name(self.window)]
        # Every KV head serves as many query heads, so the mean of the groups' means is the mean over all of them.
        scores = vote.mean(dim=1, keepdim=True).expand_as(vote).clone()
        scores[..., layer.n_slots - self.window :] = torch.inf
        return scores
