"""Pinned E-Means: slots whose text looks like a code are kept exactly, the rest is clustered after RoPE.

The share of exact slots is ranked by lexical rarity (digits and upper-case letters in the token's text) times the
pooled window vote. Rarity is tuned to the alphabet of needles: a leak of the task into the method, to be read as such.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import PromptContext
from kvatlas.compression.policies.emeans import EMeans
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import POSITION, CompressedLayer

# A token without digits and capitals ranks far below those that have some, but still by its vote.
PLAIN_RARITY = 1e-3


@PolicyRegistration("pinned_emeans", label="Pinned AW E-Means", source="public study", kind="clustering", order=7)
@dataclass(frozen=True)
class PinnedEMeans(EMeans):
    """Keep a share of `n_mid` exactly, by lexical rarity times the vote; cluster the rest.

    Rarity counts the digits and upper-case letters of the token.

    Args:
        exact_share: share of the middle's budget that is exact.
    """

    exact_share: float = 0.65

    def n_exact(self, n_mid: int) -> int:
        """Return the exact share of `n_mid`, rounded down."""
        return int(n_mid * self.exact_share)

    def exact_scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return rarity x pooled vote `[B, K, S]`. Slots of generated tokens have the rarity of plain text."""
        if context.rarity is None:
            raise KvatlasError(
                "policy pinned_emeans: it needs the token texts; use it in a study whose prompts are text"
            )
        where = layer.slot_statistics[POSITION].round().long()
        known = where.clamp_max(context.rarity.shape[1] - 1)
        rarity = context.rarity.to(where.device)[:, None].expand(-1, where.shape[1], -1).gather(2, known)
        rarity = torch.where(where < context.rarity.shape[1], rarity.float(), 0.0)
        return (rarity + PLAIN_RARITY) * self.pooled_vote(layer)
