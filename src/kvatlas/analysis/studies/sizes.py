"""Mean sizes of the caches of an arm's trials; knows the trials' byte and slot counts and no study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

KIB, MIB = 2**10, 2**20


def averages(trials: Sequence[Mapping[str, Any]]) -> Callable[[str], float]:
    """Return the function from a field to its mean over `trials`: bytes per prompt, or slots per layer and KV head."""
    return lambda field: float(sum(trial[field] for trial in trials) / len(trials))
