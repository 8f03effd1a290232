"""Layer-aware heavy hitter: a layer whose attention is spread over more slots gets more of them, at the same total.

The spread of a layer is the effective number of slots of its accumulated attention, exp(entropy), the mean over heads
and over the prompts of a batch (all prompts of a batch hold equally many slots). Budgets are proportional to it, never
above what a layer holds, and add up to as many slots as the uniform budget would keep. The idea that layers differ in
how much they need is PyramidKV's (arXiv 2406.02069), whose budgets are a fixed function of depth; here they follow the
layer's own attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.heavy_hitter import HeavyHitter
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import ATTENTION, CompressedLayer


@PolicyRegistration("heavy_hitter_layers", label="Heavy hitter (layers)", source="after arXiv 2406.02069", order=13)
@dataclass(frozen=True)
class HeavyHitterLayers(HeavyHitter):
    """Heavy hitters, with more slots for layers whose attention is spread wider, at equal total bytes.

    Args:
        min_share: share of the uniform budget that every layer keeps at least.
    """

    min_share: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.min_share <= 1:
            raise KvatlasError(f"min_share: {self.min_share} is not a share of the uniform budget; use 0 to 1")

    def layer_budgets(self, layers: Sequence[CompressedLayer], budget: SlotBudget) -> list[int]:
        """Return how many slots each layer keeps."""
        n_slots = [layer.n_slots for layer in layers]
        # A storage format may be unable to evict its newest slots; a layer must hold at least one more.
        wanted = [max(int(self.min_share * budget.total), layer.store.unselectable_recent() + 1) for layer in layers]
        minima = [min(capacity, budget.total, want) for capacity, want in zip(n_slots, wanted, strict=True)]
        spreads = [_spread(layer) for layer in layers]
        return fill(n_slots, minima, spreads, min(sum(n_slots), budget.total * len(layers)))


def _spread(layer: CompressedLayer) -> float:
    attention = layer.slot_statistics[ATTENTION].double()
    share = attention / attention.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    entropy = -(share * share.clamp_min(1e-12).log()).sum(dim=-1)
    return float(entropy.exp().mean())


def fill(capacities: Sequence[int], minima: Sequence[int], weights: Sequence[float], total: int) -> list[int]:
    """Split `total` slots over layers in proportion to `weights`, each between its minimum and its capacity.

    `total` lies between the sums of both. What a full layer cannot take goes to the others.
    """

    def filled_to(level: float) -> list[int]:
        limits = zip(capacities, minima, weights, strict=True)
        return [min(capacity, max(minimum, int(level * weight))) for capacity, minimum, weight in limits]

    low, high = 0.0, max(capacity / weight for capacity, weight in zip(capacities, weights, strict=True))
    for _ in range(64):
        level = (low + high) / 2
        low, high = (level, high) if sum(filled_to(level)) <= total else (low, level)
    slots = filled_to(low)
    # Whole numbers leave a few slots over; they go to the layers that have room, the heaviest first.
    for layer in sorted(range(len(slots)), key=lambda layer: -weights[layer]):
        slots[layer] += min(capacities[layer] - slots[layer], total - sum(slots))
    return slots
