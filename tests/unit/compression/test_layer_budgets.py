"""PyramidKV's budgets: they fall linearly, keep to their bounds and add up exactly."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.compression.budget import SlotBudget
from kvatlas.compression.build import make_policy
from kvatlas.compression.policies.pyramidkv import exact, pyramid
from kvatlas.errors import KvatlasError


def layers(held: list[int], unselectable: int = 0) -> list[Any]:
    store = SimpleNamespace(unselectable_recent=lambda: unselectable)
    return [SimpleNamespace(n_slots=n, store=store) for n in held]


def budgets(held: list[int], budget: SlotBudget, unselectable: int = 0, **more: Any) -> list[int]:
    policy = make_policy({"name": "pyramidkv", "window": 16, **more})
    assert policy is not None
    return policy.layer_budgets(layers(held, unselectable), budget)


def test_the_papers_line_is_followed() -> None:
    # Beside the window of 16: mean 100, so 195 in the first layer and 5 in the last.
    assert budgets([1000] * 5, SlotBudget(0, 0, 116)) == [211, 164, 116, 68, 21]
    assert budgets([1000] * 4, SlotBudget(4, 8, 104), beta=1.0) == [116] * 4
    assert budgets([1000], SlotBudget(0, 0, 116)) == [116]


def test_a_first_layer_that_cannot_hold_its_share_leaves_it_to_the_others() -> None:
    assert pyramid(3, 60, 84, 20) == [84, 60, 36]
    assert budgets([100] * 3, SlotBudget(0, 0, 76)) == [100, 76, 52]


def test_layers_keep_what_is_protected_or_cannot_be_evicted() -> None:
    assert min(budgets([1000] * 8, SlotBudget(4, 32, 28))) == 37
    assert min(budgets([1000] * 8, SlotBudget(0, 0, 64), unselectable=40)) == 41


@settings(max_examples=200, deadline=None)
@given(
    held=st.lists(st.integers(1, 400), min_size=1, max_size=40),
    mean=st.integers(17, 399),
    beta=st.floats(1, 50),
)
def test_the_sum_is_exact_whatever_layers_hold(held: list[int], mean: int, beta: float) -> None:
    total = min(sum(held), mean * len(held))
    if sum(min(n, 17) for n in held) > total:
        return
    slots = budgets(held, SlotBudget(0, 0, mean), beta=beta)
    assert sum(slots) == total
    assert all(min(n, 17) <= kept <= n for n, kept in zip(held, slots, strict=True))
    if len(set(held)) == 1:
        assert all(above <= below for below, above in pairwise(slots))


def test_budgets_that_do_not_pass_the_window_or_the_minima_are_told() -> None:
    with pytest.raises(KvatlasError, match="do not pass the window of 16"):
        budgets([100] * 3, SlotBudget(0, 0, 16))
    with pytest.raises(KvatlasError, match="do not hold the 30"):
        exact([10, 10], [15, 15], [20, 20], 20)
    with pytest.raises(KvatlasError, match=r"beta: 0\.5"):
        make_policy({"name": "pyramidkv", "beta": 0.5})
