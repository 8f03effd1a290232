"""Naive Drop: evenly spaced middle positions, whatever they hold. The control that looks at nothing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import Policy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("naive_drop", label="Naive Drop", source="control", order=1)
@dataclass(frozen=True)
class NaiveDrop(Policy):
    """Keep evenly spaced middle slots: index `floor((i + 0.5) M / n_mid)` of `M`, the same in every head."""

    def compress(self, layer: CompressedLayer, budget: SlotBudget, context: PromptContext) -> None:
        """Keep sinks, evenly spaced middle slots and recent slots."""
        layer.select(self._index(layer, budget))

    def _index(self, layer: CompressedLayer, budget: SlotBudget) -> Tensor:
        like = layer.positions()
        middle = layer.n_slots - budget.n_sinks - budget.n_recent
        steps = torch.arange(budget.n_mid, device=like.device)
        # (2i + 1) M / (2 n_mid) in integers: the same slots on every machine.
        spaced = budget.n_sinks + (2 * steps + 1) * middle // (2 * budget.n_mid)
        sinks = torch.arange(budget.n_sinks, device=like.device)
        recent = torch.arange(layer.n_slots - budget.n_recent, layer.n_slots, device=like.device)
        return torch.cat([sinks, spaced, recent]).expand(*like.shape[:2], -1)
