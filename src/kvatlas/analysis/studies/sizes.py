"""Mean sizes of the caches of an arm's trials; knows the trials' byte and slot counts and no study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvatlas.grid.policy_parameters import NO_QUANTIZER

KIB, MIB = 2**10, 2**20


def averages(trials: Sequence[Mapping[str, Any]]) -> Callable[[str], float]:
    """Return the function from a field to its mean over `trials`: bytes per prompt, or slots per layer and KV head."""
    return lambda field: float(sum(trial[field] for trial in trials) / len(trials))


def deployed_bytes(trial: Mapping[str, Any], full_slots: float) -> float:
    """Resident bytes of an arm's cache as it is deployed, where the full cache has `full_slots` slots per layer and head.

    A quantized cache is deployed as it is, a plain one in bf16, whatever dtype the run stored.
    """
    if trial["quantizer"] != NO_QUANTIZER:
        return float(trial["resident_bytes"])
    beside_payload = trial["resident_bytes"] - trial["payload_bytes"]
    return float(trial["full_bf16_bytes"] * trial["slots"] / full_slots + beside_payload)
