"""An arm's id names what it is, and arms are found by their fields and never by their ids."""

from __future__ import annotations

from itertools import product

import pytest

from kvatlas.grid.arms import BASE, Arm, arms_of, budget_id

BUDGETS = ("4x", "8x", "50%", "5%", "50", "256")
EVERY = [
    Arm("full"),
    Arm("full", quantizer="int8"),
    *(
        Arm(*fields)
        for fields in product(("snapkv", "h2o", "h2o_raw"), BUDGETS, ("none", "int4", "kivi4"), (BASE, "bare"))
    ),
]


@pytest.mark.parametrize(
    ("arm", "name"),
    [
        (Arm("full"), "full"),
        (Arm("full", quantizer="int8"), "full-int8"),
        (Arm("snapkv", "4x"), "snapkv-4x"),
        (Arm("l2norm", "10%"), "l2norm-10pct"),
        (Arm("keydiff", "256", protection="bare"), "keydiff-256slots-bare"),
        (Arm("snapkv", "4x", "int4", "bare"), "snapkv-4x-int4-bare"),
    ],
)
def test_an_id_names_what_differs_from_the_plainest_arm(arm: Arm, name: str) -> None:
    assert arm.id == name


def test_no_two_arms_share_an_id() -> None:
    assert len({arm.id for arm in EVERY}) == len(EVERY)
    assert len({budget_id(budget) for budget in BUDGETS}) == len(BUDGETS)


@pytest.mark.parametrize("arm", EVERY, ids=lambda arm: arm.id)
def test_a_row_s_fields_give_the_arm_back(arm: Arm) -> None:
    row = arm.spec({}, {})
    assert row["arm"] == arm.id
    assert Arm.of(row) == arm
    assert ("protection" in row) == (arm.protection != BASE)


def test_other_fields_leave_the_rest_as_it_is() -> None:
    arm = Arm("snapkv", "4x", "int4", "bare")
    assert arm.with_(quantizer="none") == Arm("snapkv", "4x", "none", "bare")
    assert arm.with_(method="h2o") == Arm("h2o", "4x", "int4", "bare")
    assert arm.with_(budget="8x", protection=BASE) == Arm("snapkv", "8x", "int4")
    assert arm.with_() == arm


def test_the_full_cache_has_no_budget_and_nothing_to_protect() -> None:
    assert Arm("snapkv", "4x", "int4", "bare").with_(method="full") == Arm("full", quantizer="int4")
    assert Arm("full").with_(budget="4x", protection="bare") == Arm("full")


def test_a_protection_changes_what_a_spec_protects() -> None:
    study = {"n_sinks": 4, "n_recent": 32, "protections": {"bare": {"n_recent": 0}}}
    plain, bare = Arm("snapkv", "4x").spec({}, study), Arm("snapkv", "4x", protection="bare").spec({}, study)
    assert (plain["n_sinks"], plain["n_recent"]) == (4, 32)
    assert (bare["n_sinks"], bare["n_recent"]) == (4, 0)


def test_a_variant_has_its_policy_s_name_and_its_own_parameters() -> None:
    config = {"methods": {"h2o_raw": {"policy": "h2o", "normalize": False}}}
    assert Arm("h2o_raw", "4x").spec(config, {})["policy"] == {"name": "h2o", "normalize": False}


def test_lists_cross_into_arms_each_once_and_the_full_cache_comes_first() -> None:
    lists = {"methods": ["full", "snapkv", "h2o"], "budgets": ["4x", "8x"], "quantizers": ["none", "int8"]}
    arms = arms_of([lists, lists])
    assert arms[:2] == [Arm("full"), Arm("full", quantizer="int8")]
    assert len(arms) == len(set(arms)) == 2 + 2 * 2 * 2
    assert arms_of({"methods": ["snapkv"]}) == [Arm("full")]
