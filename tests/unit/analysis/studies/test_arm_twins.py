"""Which arms an arm is compared with: found by fields, so that a method's or a quantizer's name may hold anything."""

from __future__ import annotations

from typing import Any

from kvatlas.analysis.studies import arm_twins
from kvatlas.grid.arms import Arm


def row(method: str, budget: str = "none", quantizer: str = "none", protection: str = "base") -> dict[str, Any]:
    """A row of a table, as far as it is about its arm."""
    fields = {"method": method, "budget": budget, "quantizer": quantizer, "protection": protection}
    return {"arm": Arm(**fields).id, **fields}


def test_a_twin_of_another_method_has_the_same_budget_quantizer_and_protection() -> None:
    assert arm_twins.of_method(row("snapkv", "4x", "int4", "bare"), "random") == "random-4x-int4-bare"
    assert arm_twins.of_method(row("snapkv", "50%"), "random") == "random-50pct"


def test_the_reference_stands_in_the_arm_s_place_or_there_without_a_quantizer() -> None:
    arm = row("h2o", "4x", "int8", "bare")
    both = {"snapkv-4x", "snapkv-4x-bare", "snapkv-4x-int8-bare"}
    assert arm_twins.of_reference(arm, both) == "snapkv-4x-int8-bare"
    assert arm_twins.of_reference(arm, both - {"snapkv-4x-int8-bare"}) == "snapkv-4x-bare"
    assert arm_twins.of_reference(arm, {"snapkv-4x"}) is None
    assert arm_twins.of_reference(row("snapkv", "4x", "int8", "bare"), both) is None


def test_the_full_cache_has_no_twin_of_another_method() -> None:
    assert arm_twins.of_method(row("full"), "random") is None
    assert arm_twins.of_method(row("full", quantizer="int8"), "random") is None


def test_the_unquantized_twin_keeps_budget_and_protection() -> None:
    assert arm_twins.unquantized(row("snapkv", "4x", "int4", "bare")) == "snapkv-4x-bare"
    assert arm_twins.unquantized(row("full", quantizer="int4")) == "full"


def test_a_method_named_after_a_quantizer_keeps_its_name() -> None:
    assert arm_twins.unquantized(row("snapkv_int4", "4x", "int4")) == "snapkv_int4-4x"


def test_an_interaction_takes_an_arm_that_is_evicted_and_quantized_and_its_three_twins() -> None:
    twins = ("snapkv-4x", "full-int4", "full")
    assert arm_twins.of_interaction(row("snapkv", "4x", "int4"), twins) == twins
    assert arm_twins.of_interaction(row("snapkv", "4x"), twins) is None
    assert arm_twins.of_interaction(row("full", quantizer="int4"), twins) is None


def test_an_interaction_without_one_of_its_twins_is_none() -> None:
    twins = {"snapkv-4x", "full-int4", "full"}
    for missing in twins:
        assert arm_twins.of_interaction(row("snapkv", "4x", "int4"), twins - {missing}) is None


def test_the_baseline_has_the_same_budget_and_rather_the_same_protection() -> None:
    rows = [row("sink_recent", budget, protection=name) for budget in ("256", "512") for name in ("base", "bare")]
    arms = {twin["arm"]: twin for twin in rows}
    for name in ("base", "bare"):
        assert arm_twins.baseline_of(row("tova", "512", protection=name), arms) == row(
            "sink_recent", "512", "none", name
        )
    one = {"sink_recent-512slots": arms["sink_recent-512slots"]}
    assert arm_twins.baseline_of(row("tova", "512", protection="bare"), one) == row("sink_recent", "512")
    assert arm_twins.baseline_of(row("tova", "128"), arms) is None


def test_the_baseline_has_the_same_quantizer_or_there_is_none() -> None:
    arms = {twin["arm"]: twin for twin in (row("sink_recent", "256"), row("sink_recent", "256", "int8", "fair"))}
    assert arm_twins.baseline_of(row("snapkv", "256", "int8"), arms) == row("sink_recent", "256", "int8", "fair")
    assert arm_twins.baseline_of(row("snapkv", "256", protection="fair"), arms) == row("sink_recent", "256")
    assert arm_twins.baseline_of(row("snapkv", "256", "int4"), arms) is None
