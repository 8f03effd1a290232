"""H2O: tokens that have received much attention so far. arXiv 2306.14048.

No two public codes agree, so the four choices are stated. Statistic: the sum of attention over all queries so far,
divided by the number of queries that could see the slot (`queries`, which removes the bias towards early tokens) or not
(`none`, the paper's sum). Recent half: the protected recent slots of the budget. When: accumulated at every forward
pass, read whenever the cache is compressed. Head: per KV head, the mean over its query heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import ATTENTION, N_QUERIES, CompressedLayer, Observation


@PolicyRegistration("h2o", label="H2O", source="arXiv 2306.14048", order=3)
@dataclass(frozen=True)
class H2O(EvictionPolicy):
    """The score is the attention received so far, divided by the number of queries that could see the slot.

    With `normalise: none` it is the paper's sum, which favours early tokens.

    Args:
        normalise: `queries` divides by the number of queries that could see the slot, `none` keeps the sum.
    """

    normalise: Literal["queries", "none"] = "queries"

    def observation(self) -> Observation:
        """Ask for the cumulative attention."""
        return Observation(cumulative=True)

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return accumulated attention `[B, K, S]`, per query that could see the slot or in all."""
        received = layer.slot_statistics[ATTENTION]
        return received if self.normalise == "none" else received / layer.slot_statistics[N_QUERIES]
