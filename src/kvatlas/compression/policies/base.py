"""What a compression policy is.

A policy is a frozen dataclass: its parameters are its fields, its `repr` is its label, and it keeps nothing between
prompts. It says which attention statistics it needs, and it either scores slots (eviction) or rewrites a layer
(clustering). Adding a method means adding one file here, which registers its class
(`kvatlas.compression.methods`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.selection import kept_slots
from kvatlas.lm.cache import CompressedLayer, Observation
from kvatlas.lm.rope import Rotary


@dataclass(frozen=True)
class PromptContext:
    """What a policy may know besides the layer.

    Args:
        rotary: the model's rotation, for methods that undo it.
        seeds: one number per prompt of the batch, for methods that draw at random.
        layer_idx: index of the layer at hand.
        step: how many times this cache was compressed before.
        rarity: `[B, T]` number of digits and upper-case letters in the text of each prompt token, or None.
    """

    rotary: Rotary
    seeds: Sequence[int]
    layer_idx: int = 0
    step: int = 0
    rarity: Tensor | None = None


@dataclass(frozen=True)
class Policy(ABC):
    """A way to bring one layer of a cache back to its budget.

    Where `states_budgets`, trials say how many slots each layer holds.
    """

    protects_sinks: ClassVar[bool] = True
    protects_recent: ClassVar[bool] = True
    reindexes: ClassVar[bool] = False
    states_budgets: ClassVar[bool] = False

    def observation(self) -> Observation:
        """Return the attention statistics that this policy reads; none by default."""
        return Observation()

    def slots(self, budget: SlotBudget) -> SlotBudget:
        """Return the budget with the protection that this method gives: what it does not protect joins the middle."""
        n_sinks = budget.n_sinks if self.protects_sinks else 0
        n_recent = budget.n_recent if self.protects_recent else 0
        return SlotBudget(n_sinks, n_recent, budget.total - n_sinks - n_recent)

    def layer_budgets(self, layers: Sequence[CompressedLayer], budget: SlotBudget) -> list[int]:
        """Return how many slots each layer keeps; all the same by default, never more in all than `budget` allows."""
        return [budget.total] * len(layers)

    @abstractmethod
    def compress(self, layer: CompressedLayer, budget: SlotBudget, context: PromptContext) -> None:
        """Bring `layer`, which holds more slots than `budget.total`, down to exactly that many."""


@dataclass(frozen=True)
class EvictionPolicy(Policy):
    """A policy that keeps the slots with the highest scores and drops the others."""

    @abstractmethod
    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return a score for each slot, `[B, K, S]` float; the highest stay."""

    def compress(self, layer: CompressedLayer, budget: SlotBudget, context: PromptContext) -> None:
        """Keep the protected slots and the best of the middle."""
        layer.select(kept_slots(self.scores(layer, context), budget))
