"""Value merging: what another policy evicts leaves its value to the kept slot with the most similar key.

Works on any policy that evicts: the base chooses the slots, keys stay untouched. Similarity is the cosine of the keys as
they are stored. All weights are of the values before any is merged, so the order of slots does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.build import make_policy
from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, Policy, PromptContext
from kvatlas.compression.selection import complement, kept_slots
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CLUSTER_SIZE, POSITION, CompressedLayer, Observation
from kvatlas.lm.stores import take_slots


@PolicyRegistration(
    "merging", label="Value merging", source="after kvpress's MergingPress", kind="clustering", wraps="snapkv", order=22
)
@dataclass(frozen=True)
class Merging(Policy):
    """Evict as `base` does, and add each evicted value to the kept slot with the most similar key.

    `base` is a map of a policy that evicts and its parameters, `{policy: NAME, ...}`, SnapKV with its defaults otherwise.
    The weight is `sim |v_e| / (|v_e| + |v_t|)`, with the cosine `sim` of the keys; keys stay as they are. With
    `proportional_attention`, log(members) is added to a slot's attention logit.

    Args:
        base: the policy that evicts and its parameters, `{policy: NAME, ...}`; SnapKV by default.
        merge: what is merged. proportional_attention: attend to a slot in proportion to its members.
    """

    base: Mapping[str, Any] | None = None
    merge: Literal["value"] = "value"
    proportional_attention: bool = False

    def __post_init__(self) -> None:
        self._base()

    def evicting(self) -> Policy | None:
        """Return the policy that chooses the slots. Raises KvatlasError where `base` names none."""
        entry = dict({"policy": "snapkv"} if self.base is None else self.base)
        if "policy" not in entry:
            raise KvatlasError(f"base: {self.base} names no policy; write base: {{policy: NAME}}")
        return make_policy({"name": entry.pop("policy"), **entry})

    def observation(self) -> Observation:
        """Ask for what the base reads."""
        return self._base().observation()

    def slots(self, budget: SlotBudget) -> SlotBudget:
        """Return the base's budget."""
        return self._base().slots(budget)

    def layer_budgets(self, layers: Sequence[CompressedLayer], budget: SlotBudget) -> list[int]:
        """Return the base's budgets."""
        return self._base().layer_budgets(layers, budget)

    def compress(self, layer: CompressedLayer, budget: SlotBudget, context: PromptContext) -> None:
        """Keep the base's slots, and merge the values of all others into them."""
        layer.slot_statistics[POSITION] = layer.positions()
        layer.slot_statistics.setdefault(CLUSTER_SIZE, torch.ones_like(layer.slot_statistics[POSITION]))
        layer.proportional_attention = self.proportional_attention
        kept = kept_slots(self._base().scores(layer, context), budget)
        keys, values = layer.store.read()
        evicted = complement(kept, layer.n_slots)
        target, similarity = nearest(take_slots(keys, evicted), take_slots(keys, kept))
        merged = merge_values(take_slots(values, kept), take_slots(values, evicted), target, similarity)
        statistics = {name: take_slots(statistic, kept) for name, statistic in layer.slot_statistics.items()}
        members = take_slots(layer.slot_statistics[CLUSTER_SIZE], evicted)
        statistics[CLUSTER_SIZE] = statistics[CLUSTER_SIZE].scatter_add(2, target, members)
        layer.replace(take_slots(keys, kept), merged, statistics)

    def _base(self) -> EvictionPolicy:
        base = self.evicting()
        # `EvictionPolicy.compress` keeps the best by score, which is what is done here.
        if not isinstance(base, EvictionPolicy) or type(base).compress is not EvictionPolicy.compress or base.reindexes:
            raise KvatlasError(f"base: {self.base} does not only evict by score; use a policy that does")
        return base


def nearest(evicted: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Return the kept slot with the most similar key of each evicted one, and their cosine, `[B, K, E]` each.

    Args:
        evicted: keys `[B, K, E, d]`. kept: keys `[B, K, n, d]`. The memory needed is O(E x n) of one head at a time.
    """
    rows = zip(*(F.normalize(keys.float(), dim=-1).flatten(0, 1).unbind() for keys in (evicted, kept)), strict=True)
    best = [(out @ stay.T).max(dim=-1) for out, stay in rows]
    shape = evicted.shape[:3]
    return torch.stack([b.indices for b in best]).view(shape), torch.stack([b.values for b in best]).view(shape)


def merge_values(kept: Tensor, evicted: Tensor, target: Tensor, similarity: Tensor) -> Tensor:
    """Add each evicted value to its target, weighted by `sim |v_e| / (|v_e| + |v_t|)`; sums are in fp32.

    Args:
        kept: `[B, K, n, d]`. evicted: `[B, K, E, d]`. target: index into kept, similarity: cosine, `[B, K, E]` each.

    Returns:
        `[B, K, n, d]` in the dtype of `kept`.
    """
    out, stay = evicted.float(), kept.float()
    lengths, of_target = out.norm(dim=-1), stay.norm(dim=-1).gather(2, target)
    weight = similarity * lengths / (lengths + of_target).clamp_min(1e-12)
    return stay.scatter_add(2, target[..., None].expand_as(out), out * weight[..., None]).to(kept.dtype)
