"""Building what an arm names: its policy, and the stores of its quantizer.

A name leads to a module lazily: building one arm imports that arm's module and no other, and the code fingerprint of a
cell covers exactly what it imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvatlas.compression.methods import FULL, NO_QUANTIZER, Registration, find_policy, find_quantizer
from kvatlas.errors import KvatlasError

if TYPE_CHECKING:
    from kvatlas.compression.policies.base import Policy
    from kvatlas.lm.stores import KVStore


def make_policy(spec: Mapping[str, Any]) -> Policy | None:
    """Build the policy of an arm from `{"name": ..., **parameters}`; None for the full cache.

    Raises KvatlasError for an unknown policy, or for parameters that it does not take.
    """
    if spec["name"] == FULL:
        return None
    parameters = {key: value for key, value in spec.items() if key != "name"}
    policy_class = _definition(find_policy(spec["name"]))
    try:
        policy: Policy = policy_class(**parameters)
    except TypeError as error:
        raise KvatlasError(f"policy {spec['name']}: {error}") from error
    return policy


def make_store(name: str, storage: str = "packed") -> Callable[[], KVStore]:
    """Return what builds a layer's store under a quantizer; `none` keeps the model's own numbers.

    `storage` is `packed` (codes are held) or `simulated` (rounded floats are held, and read as the same bits). Raises
    KvatlasError for an unknown quantizer or storage.
    """
    if storage not in ("packed", "simulated"):
        raise KvatlasError(f"storage: '{storage}' is unknown; use packed or simulated")
    if name == NO_QUANTIZER:
        from kvatlas.lm.stores import PlainStore

        return PlainStore
    return partial(_definition(find_quantizer(name)), storage)


def _definition(registration: Registration) -> Any:
    return getattr(import_module(registration.module), registration.definition)
