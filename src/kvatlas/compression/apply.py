"""Bringing a whole cache back to its budget, and the schedules on which that happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from kvatlas.compression.budget import Budget, SlotBudget
from kvatlas.compression.policies.base import Policy, PromptContext
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.rope import Rotary
from kvatlas.lm.stores import KVStore


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
        chosen = [index for index in range(len(cache.layers)) if index not in self.budget.skip_layers]
        totals = self.policy.layer_budgets([cache.layers[index] for index in chosen], slots)
        for layer_idx, total in zip(chosen, totals, strict=True):
            layer = cache.layers[layer_idx]
            if layer.n_slots > total:
                here = self._reachable(slots, total, layer.store.unselectable_recent())
                self.policy.compress(layer, here, replace(context, layer_idx=layer_idx))
                cache.reindexed = self.policy.reindexes
        cache.states_budgets = self.policy.states_budgets
        self.steps += 1

    def _reachable(self, slots: SlotBudget, total: int, unselectable: int) -> SlotBudget:
        """Protect the newest slots that a storage format cannot evict, within the layer's total."""
        n_recent = max(slots.n_recent, unselectable)
        n_mid = total - slots.n_sinks - n_recent
        if n_mid <= 0:
            raise KvatlasError(
                f"budgets: {total} slots cannot hold {slots.n_sinks} sinks and the {n_recent} newest slots that "
                "this quantizer keeps unquantized; raise the budget"
            )
        return SlotBudget(slots.n_sinks, n_recent, n_mid)


def quantize(cache: CompressedCache, make_store: Callable[[], KVStore]) -> None:
    """Write what every layer holds through a quantizer, once, as slots that come in now."""
    for layer in cache.layers:
        keys, values = layer.store.read()
        layer.store = make_store()
        layer.store.replace(keys, values)
