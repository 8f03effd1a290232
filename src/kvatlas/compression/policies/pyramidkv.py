"""PyramidKV: SnapKV with more slots in the lower layers than in the upper ones. arXiv 2406.02069.

Beside the window, layer l of L gets `max - l (max - min) / (L - 1)` slots, with `min = (n - w) / beta` and
`max = 2 (n - w) - min` for a nominal budget of n slots and a window of w. `max` is at most what lies before the window,
and the others get the rest. Public codes round their steps, which misses the total by several percent, or give every
layer the same where `min` is small; here the sum over layers is exactly L n, and nothing falls back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.compression.window_vote import WindowVote
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("pyramidkv", label="PyramidKV", source="arXiv 2406.02069", order=21)
@dataclass(frozen=True)
class PyramidKV(WindowVote, EvictionPolicy):
    """SnapKV's score, with slots that fall linearly from the first layer to the last, at equal total bytes.

    Beside the window the last layer has `1 / beta` of the mean; the sum over layers is exactly that of equal budgets.

    Args:
        beta: mean over last layer's slots, both beside the window; 1 gives all layers the same.
    """

    beta: float = 20.0
    states_budgets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beta < 1:
            raise KvatlasError(f"beta: {self.beta} would give upper layers more than lower ones; use at least 1")

    def layer_budgets(self, layers: Sequence[CompressedLayer], budget: SlotBudget) -> list[int]:
        """Return how many slots each layer keeps. Raises KvatlasError when the budget does not pass the window."""
        if budget.total <= self.window:
            raise KvatlasError(
                f"budgets: {budget.total} slots per layer do not pass the window of {self.window}; "
                "raise the budget or use a smaller window"
            )
        held = [layer.n_slots for layer in layers]
        total = min(sum(held), budget.total * len(layers))
        # A layer keeps what is protected, the window, what its storage cannot evict, and at least one slot more.
        ends = [max(budget.n_recent, layer.store.unselectable_recent()) for layer in layers]
        minima = [min(n, max(budget.n_sinks + end, self.window) + 1) for n, end in zip(held, ends, strict=True)]
        line = pyramid(len(layers), budget.total - self.window, max(held) - self.window, self.beta)
        return exact([self.window + slots for slots in line], minima, held, total)

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return the pooled vote `[B, K, S]`."""
        return self.selection_scores(layer)


def pyramid(n_layers: int, mean: float, most: float, beta: float) -> list[float]:
    """Return `n_layers` numbers of the given mean that fall linearly to `mean / beta`, none above `most`."""
    first = min(2 * mean - mean / beta, max(mean, most))
    step = 2 * (first - mean) / max(1, n_layers - 1)
    return [first - index * step if n_layers > 1 else mean for index in range(n_layers)]


def exact(wanted: Sequence[float], minima: Sequence[int], maxima: Sequence[int], total: int) -> list[int]:
    """Return whole numbers near `wanted`, each between its minimum and maximum, that add up to `total`.

    What the bounds give or take is shared by the others alike; fractions go to the largest remainders, lower layers
    first. Raises KvatlasError when the minima alone pass the total.
    """
    if sum(minima) > total:
        raise KvatlasError(f"budgets: {total} slots over all layers do not hold the {sum(minima)} that must stay")

    def shifted(shift: float) -> list[float]:
        bounds = zip(wanted, minima, maxima, strict=True)
        return [min(float(most), max(float(least), want + shift)) for want, least, most in bounds]

    reach = max(maxima) + max(abs(want) for want in wanted)
    low, high = -reach, reach
    for _ in range(64):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(shifted(middle)) <= total else (low, middle)
    # Rounded first, so that 12 does not become 11 through a binary fraction.
    near = [round(slots, 6) for slots in shifted(low)]
    slots = [int(number) for number in near]
    by_remainder = sorted(range(len(near)), key=lambda index: slots[index] - near[index])
    for index in by_remainder[: total - sum(slots)]:
        slots[index] += 1
    return slots
