"""Bringing a whole cache back to its budget, and the schedules on which that happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from kvatlas.compression.budget import Budget, SlotBudget
from kvatlas.compression.policies.base import Policy, PromptContext
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.rope import Rotary


@dataclass
class Compressor:
    """One policy under one budget, for one batch of prompts.

    Args:
        policy: the method, or None for the full cache.
        budget: as the user states it. n_tokens: the context that ratio and share refer to.
        rotary: the model's rotation. seeds: one number per prompt. rarity: see `PromptContext`.
    """

    policy: Policy | None
    budget: Budget | None
    n_tokens: int
    rotary: Rotary
    seeds: Sequence[int]
    rarity: Tensor | None = None
    steps: int = field(default=0, init=False)

    def slots(self) -> SlotBudget | None:
        """Return the slots of a compressed layer; None for the full cache or where everything fits.

        Raises KvatlasError when the policy re-indexes positions while some layers stay full.
        """
        if self.policy is None or self.budget is None:
            return None
        if self.policy.reindexes and self.budget.skip_layers:
            raise KvatlasError("skip_layers: re-indexed positions need the same number of slots in every layer")
        return self.policy.slots(self.budget.resolve(self.n_tokens))

    def __call__(self, cache: CompressedCache) -> None:
        """Bring every layer that holds too many slots back to the budget; layers within it are left untouched."""
        slots = self.slots()
        if slots is None or self.policy is None or self.budget is None:
            return
        context = PromptContext(self.rotary, self.seeds, step=self.steps, rarity=self.rarity)
        for layer_idx, layer in enumerate(cache.layers):
            if layer_idx in self.budget.skip_layers:
                continue
            here = self._reachable(slots, layer.store.unselectable_recent())
            if layer.n_slots > here.total:
                self.policy.compress(layer, here, replace(context, layer_idx=layer_idx))
                cache.reindexed = self.policy.reindexes
        self.steps += 1

    def _reachable(self, slots: SlotBudget, unselectable: int) -> SlotBudget:
        """Protect the newest slots that a storage format cannot evict, within the same total."""
        n_recent = max(slots.n_recent, unselectable)
        n_mid = slots.total - slots.n_sinks - n_recent
        if n_mid <= 0:
            raise KvatlasError(
                f"budgets: {slots.total} slots cannot hold {slots.n_sinks} sinks and the {n_recent} newest slots that "
                "this quantizer keeps unquantized; raise the budget"
            )
        return SlotBudget(slots.n_sinks, n_recent, n_mid)
