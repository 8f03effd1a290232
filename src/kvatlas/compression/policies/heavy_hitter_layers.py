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
        held = [layer.n_slots for layer in layers]
        # A storage format may be unable to evict its newest slots; a layer must hold at least one more.
        wanted = [max(int(self.min_share * budget.total), layer.store.unselectable_recent() + 1) for layer in layers]
        floor = [min(n_slots, budget.total, least) for n_slots, least in zip(held, wanted, strict=True)]
        spreads = [_spread(layer) for layer in layers]
        return fill(held, floor, spreads, min(sum(held), budget.total * len(layers)))


def _spread(layer: CompressedLayer) -> float:
    mass = layer.slot_statistics[ATTENTION].double()
    share = mass / mass.sum(dim=-1, keepdim=True).clamp_min(1e-12)
    entropy = -(share * share.clamp_min(1e-12).log()).sum(dim=-1)
    return float(entropy.exp().mean())


def fill(capacity: Sequence[int], floor: Sequence[int], weights: Sequence[float], total: int) -> list[int]:
    """Split `total` whole units in proportion to `weights`, between `no_context` and `capacity` of each part.

    `total` lies between the sums of both. What a full part cannot take goes to the others.
    """
    low, high = 0.0, max(cap / weight for cap, weight in zip(capacity, weights, strict=True))
    parts = list(capacity)
    for _ in range(64):
        level = (low + high) / 2
        parts = [
            min(cap, max(least, int(level * weight)))
            for cap, least, weight in zip(capacity, floor, weights, strict=True)
        ]
        low, high = (level, high) if sum(parts) <= total else (low, level)
    parts = [
        min(cap, max(least, int(low * weight))) for cap, least, weight in zip(capacity, floor, weights, strict=True)
    ]
    # Whole numbers leave a few units over; they go to the parts that have room, the heaviest first.
    for place in sorted(range(len(parts)), key=lambda place: -weights[place]):
        parts[place] += min(capacity[place] - parts[place], total - sum(parts))
    return parts
