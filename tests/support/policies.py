"""Every registered policy with parameters that fit tiny prompts: its defaults, each choice that it offers, and more.

A policy is found by its registration, so that a new file gets all generic tests.
"""

from __future__ import annotations

import ast
from typing import Any

from kvatlas.compression.build import make_policy
from kvatlas.compression.methods import policies
from kvatlas.grid.policy_parameters import Field, policy_fields

# Numbers that a signature does not give away.
MORE: dict[str, list[dict[str, Any]]] = {
    "random": [{"seed": 3}],
    "heavy_hitter_layers": [{"min_share": 1.0}],
    "expected_attention": [{"n_future": 8, "epsilon": 0.01}],
    "pyramidkv": [{"window": 4, "beta": 1.0}, {"window": 4, "kernel": 3, "beta": 2.0}],
    "snapkv": [{"window": 4, "kernel": 1}, {"window": 4, "kernel": 5, "pooling": "max"}],
    "tova": [{"window": 3}],
}
WINDOW = 4
UNEVEN = ("heavy_hitter_layers", "pyramidkv")
"""Policies whose layers share a total unevenly."""


def choices(field: Field) -> list[Any]:
    """The values besides the default of a parameter that has few."""
    if field.annotation == "bool":
        return [not field.default]
    if field.annotation.startswith("Literal["):
        values = ast.literal_eval(f"({field.annotation.removeprefix('Literal[').removesuffix(']')},)")
        return [value for value in values if value != field.default]
    return []


def variants(name: str) -> list[dict[str, Any]]:
    """The parameters that a policy is tested with."""
    fields = policy_fields(name)
    # The default window of most policies is a large part of a tiny prompt.
    base = {"window": WINDOW} if "window" in fields and fields["window"].default > WINDOW else {}
    chosen = [base | {field.name: value} for field in fields.values() for value in choices(field)]
    return [base, *chosen, *MORE.get(name, [])]


def specs(kind: str) -> list[dict[str, Any]]:
    """The specs of all policies of a kind. Re-indexed positions have tests of their own: no twin has such positions."""
    every = [
        {"name": name, **more}
        for name, registration in policies().items()
        if registration.kind == kind
        for more in variants(name)
    ]
    return [spec for spec in every if not make_policy(spec).reindexes]


EVICTION_SPECS, CLUSTERING_SPECS = specs("eviction"), specs("clustering")
SPECS = EVICTION_SPECS + CLUSTERING_SPECS


def label(spec: dict[str, Any]) -> str:
    """Name a spec in a test id."""
    return "-".join(str(value) for value in spec.values())
