"""Attention-weighted E-Means: the middle of the cache is replaced by barycentres of its keys and values.

`emeans_post_rope` clusters keys as they are stored. `emeans_pre_rope` undoes the rotation exactly (k_pre = R(-p) k),
clusters, and rotates each centroid to its weighted mean position, which is fractional. Hybrids keep a share of the
middle as exact slots first, and cluster the rest. With `proportional_attention`, log(members) is added to a centroid's
attention logit, because a slot that stands for m tokens would otherwise be attended m times too little (arXiv
2210.09461).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.clustering import assign, cluster_sums, weighted_means
from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import Policy, PromptContext
from kvatlas.compression.selection import complement, top_slots
from kvatlas.compression.window_vote import WindowVote
from kvatlas.lm.cache import ATTENTION, CLUSTER_SIZE, N_QUERIES, POSITION, CompressedLayer, Observation
from kvatlas.lm.stores import take_slots


@dataclass(frozen=True)
class EMeans(WindowVote, Policy):
    """Replace the middle by as many barycentres as the budget allows.

    Args:
        weights: what a slot weighs in a barycentre: its pooled `window` vote, its `cumulative` attention, or `uniform`.
        n_iter: Lloyd steps. proportional_attention: attend to a centroid in proportion to its members.
        window, kernel, pooling: see `WindowVote`.
    """

    pre_rope: ClassVar[bool] = False

    weights: Literal["window", "cumulative", "uniform"] = "window"
    n_iter: int = 5
    proportional_attention: bool = False

    def observation(self) -> Observation:
        """Ask for the statistics that the weights need."""
        if self.weights == "cumulative":
            return Observation(cumulative=True, windows=(self.window,))
        return Observation(windows=(self.window,))

    def n_exact(self, n_mid: int) -> int:
        """Return how many of the middle's slots are kept as they are."""
        return 0

    def exact_scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return what decides which slots are kept as they are, `[B, K, S]`; only hybrids need it."""
        return self.pooled_vote(layer)

    def slot_weights(self, layer: CompressedLayer) -> Tensor:
        """Return a weight above 0 for each slot, `[B, K, S]`."""
        if self.weights == "window":
            return self.pooled_vote(layer) + 1e-6
        if self.weights == "cumulative":
            return layer.slot_statistics[ATTENTION] + 1e-6
        return torch.ones_like(layer.positions())

    def compress(self, layer: CompressedLayer, budget: SlotBudget, context: PromptContext) -> None:
        """Keep sinks, recent slots and the hybrid's exact slots; cluster everything else."""
        layer.slot_statistics[POSITION] = layer.positions()
        layer.slot_statistics.setdefault(CLUSTER_SIZE, torch.ones_like(layer.slot_statistics[POSITION]))
        layer.proportional_attention = self.proportional_attention
        exact = self._exact_index(layer, budget, context)
        merge = complement(exact, layer.n_slots)
        statistics = dict(layer.slot_statistics, weight=self.slot_weights(layer))
        keys, values = layer.store.read()
        merged = self._merge(
            take_slots(keys, merge),
            take_slots(values, merge),
            {name: take_slots(statistic, merge) for name, statistic in statistics.items()},
            budget.total - exact.shape[-1],
            context,
        )
        joined = {
            name: torch.cat([take_slots(statistics[name], exact), merged[2][name]], dim=2)
            for name in layer.slot_statistics
        }
        order = joined[POSITION].sort(dim=-1, stable=True).indices
        layer.replace(
            take_slots(torch.cat([take_slots(keys, exact), merged[0]], dim=2), order),
            take_slots(torch.cat([take_slots(values, exact), merged[1]], dim=2), order),
            {name: take_slots(statistic, order) for name, statistic in joined.items()},
        )

    def _exact_index(self, layer: CompressedLayer, budget: SlotBudget, context: PromptContext) -> Tensor:
        lead = layer.slot_statistics[POSITION].shape[:2]
        slots = torch.arange(layer.n_slots, device=layer.slot_statistics[POSITION].device)
        first_recent = layer.n_slots - budget.n_recent
        ends = torch.cat([slots[: budget.n_sinks], slots[first_recent:]]).expand(*lead, -1)
        n_exact = self.n_exact(budget.n_mid)
        if n_exact == 0:
            return ends
        scores = self.exact_scores(layer, context)[..., budget.n_sinks : first_recent]
        return torch.cat([ends, top_slots(scores, n_exact) + budget.n_sinks], dim=-1).sort(dim=-1).values

    def _merge(
        self, keys: Tensor, values: Tensor, statistics: dict[str, Tensor], n_clusters: int, context: PromptContext
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        lead, weights = keys.shape[:2], statistics["weight"].flatten(0, 1)
        base = context.rotary.move(keys, statistics[POSITION], 0.0) if self.pre_rope else keys
        cluster = assign(base.flatten(0, 1), weights, n_clusters, self.n_iter)
        averaged = [
            base,
            values,
            statistics[POSITION][..., None],
            statistics.get(N_QUERIES, statistics[POSITION])[..., None],
        ]
        joined = torch.cat([tensor.float() for tensor in averaged], dim=-1).flatten(0, 1)
        means = weighted_means(joined, weights, cluster, n_clusters).unflatten(0, lead)
        new_keys, new_values, positions, n_queries = means.split([tensor.shape[-1] for tensor in averaged], dim=-1)
        summed = [name for name in statistics if name not in (POSITION, N_QUERIES)]
        stacked = torch.stack([statistics[name] for name in summed], dim=-1).flatten(0, 1)
        sums = cluster_sums(stacked, cluster, n_clusters).unflatten(0, lead)
        new_statistics = {name: sums[..., index] for index, name in enumerate(summed)}
        new_statistics[POSITION] = positions[..., 0]
        if N_QUERIES in statistics:
            new_statistics[N_QUERIES] = n_queries[..., 0]
        if self.pre_rope:
            new_keys = context.rotary.move(new_keys, 0.0, new_statistics[POSITION])
        return new_keys.to(keys.dtype), new_values.to(values.dtype), new_statistics


@PolicyRegistration("emeans_post_rope", label="Post-RoPE AW E-Means", source="public study", kind="clustering", order=5)
@dataclass(frozen=True)
class EMeansPostRope(EMeans):
    """Cluster keys as they are stored."""


@PolicyRegistration("emeans_pre_rope", label="Pre-RoPE AW E-Means", source="public study", kind="clustering", order=6)
@dataclass(frozen=True)
class EMeansPreRope(EMeans):
    """Undo RoPE exactly, cluster, and rotate each centroid to its weighted mean position."""

    pre_rope: ClassVar[bool] = True
