"""Which arms an arm is compared with, found by their fields: unquantized, not evicted, or of another method.

Knows arms and the ids that a study has; knows no metrics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from kvatlas.grid.arms import Arm
from kvatlas.grid.policy_parameters import FULL, NO_QUANTIZER

NO_BUDGET = Arm(FULL).budget
REFERENCE_METHOD = "snapkv"
"""The method that others are compared with where prompts are answered."""
BASELINE = "sink_recent"
"""The method that selectors of a stream have to beat."""

Row = Mapping[str, Any]


def of_method(row: Row, method: str) -> str | None:
    """The id of the arm that differs in its method alone; None for the full cache, which has no budget to share."""
    arm = Arm.of(row)
    return None if arm.budget == NO_BUDGET else arm.with_(method=method).id


def of_reference(row: Row, arms: Collection[str]) -> str | None:
    """The id of SnapKV in the arm's place, unquantized where `arms` has it only so; None where it has neither."""
    arm = Arm.of(row)
    twins = (of_method(twin, REFERENCE_METHOD) for twin in (row, {**row, "quantizer": NO_QUANTIZER}))
    return None if arm.method == REFERENCE_METHOD else next((twin for twin in twins if twin in arms), None)


def unquantized(row: Row) -> str:
    """The id of the arm without its quantizer."""
    return Arm.of(row).with_(quantizer=NO_QUANTIZER).id


def of_interaction(row: Row, arms: Collection[str]) -> tuple[str, str, str] | None:
    """The ids of the evicted, the quantized and the full twin of an arm that is both; None unless `arms` has all three."""
    arm = Arm.of(row)
    if arm.budget == NO_BUDGET or arm.quantizer == NO_QUANTIZER:
        return None
    twins = unquantized(row), arm.with_(method=FULL).id, FULL
    return twins if all(twin in arms for twin in twins) else None


def baseline_of(row: Row, arms: Mapping[str, Row]) -> Row | None:
    """The sink + recent arm of the same budget and quantizer, of the same protection where there is one.

    It protects sinks and recent slots by itself, so that arms that protect nothing are held against it too.
    """
    arm = Arm.of(row)
    alike = [
        other for other in arms.values() if Arm.of(other).with_(protection=arm.protection) == arm.with_(method=BASELINE)
    ]
    return min(alike, key=lambda other: (other["protection"] != arm.protection, other["arm"]), default=None)
