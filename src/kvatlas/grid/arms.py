"""Arms: a method at a budget, with a quantizer, under a protection; and how a configuration's lists cross into arms.

Pure functions of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvatlas.grid import policy_parameters
from kvatlas.grid.cells import Config

BASE = "base"


@dataclass(frozen=True)
class Arm:
    """A method at a budget, with a quantizer, under a protection (what is protected)."""

    method: str
    budget: str = "none"
    quantizer: str = policy_parameters.NO_QUANTIZER
    protection: str = BASE

    @property
    def id(self) -> str:
        """The arm's name in paths and tables: `snapkv-4x`, `l2norm-10pct`, `full-int8`, `keydiff-256slots-bare`."""
        parts = [self.method]
        if self.method != policy_parameters.FULL:
            parts.append(budget_id(self.budget))
        if self.quantizer != policy_parameters.NO_QUANTIZER:
            parts.append(self.quantizer)
        if self.protection != BASE:
            parts.append(self.protection)
        return "-".join(parts)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Arm:
        """Return the arm that a trial or a row of a table is about, from its fields."""
        return cls(row["method"], row["budget"], row["quantizer"], row.get("protection", BASE))

    def with_(self, **changes: str) -> Arm:
        """Return the arm with other fields: its unquantized twin, another method at its budget.

        The full cache has no budget and nothing to protect.
        """
        twin = replace(self, **changes)
        return Arm(twin.method, quantizer=twin.quantizer) if twin.method == policy_parameters.FULL else twin

    def spec(self, config: Config, block: Config) -> dict[str, Any]:
        """The keys of a cell's spec that the arm decides, in one study's `block` of a configuration."""
        base = {key: block.get(key, []) for key in ("n_sinks", "n_recent", "skip_layers")}
        named = block.get("protections", {}).get(self.protection, {})
        label = {"protection": self.protection} if self.protection != BASE else {}
        policy = (
            {"name": policy_parameters.FULL}
            if self.method == policy_parameters.FULL
            else policy_parameters.policy_of(config, self.method)
        )
        return {
            "arm": self.id,
            "method": self.method,
            "policy": policy,
            "budget": self.budget,
            "quantizer": self.quantizer,
            **base,
            **named,
            **label,
        }


def budget_id(budget: str) -> str:
    """The budget in a path: `4x`, `50pct`, `256slots`."""
    return budget if budget.endswith("x") else f"{budget[:-1]}pct" if budget.endswith("%") else f"{budget}slots"


def arms_of(entries: Config | list[Config]) -> list[Arm]:
    """The arms of a mode, each once: the full cache first, then methods x budgets x quantizers x protections."""
    arms = [Arm(policy_parameters.FULL)]
    for entry in listed(entries):
        quantizers = entry.get("quantizers", [policy_parameters.NO_QUANTIZER])
        arms += [Arm(policy_parameters.FULL, quantizer=quantizer) for quantizer in quantizers]
        arms += [
            Arm(method, budget, quantizer, protection)
            for method in entry["methods"]
            if method != policy_parameters.FULL
            for budget in entry.get("budgets", [])
            for quantizer in quantizers
            for protection in entry.get("protections", [BASE])
        ]
    return list(dict.fromkeys(arms))


def listed(entries: Config | list[Config]) -> list[Config]:
    """One map of arms or a list of such maps, as a list."""
    return [entries] if isinstance(entries, Mapping) else entries
