"""How many slots a layer may keep: three ways to state it, one internal form.

`"4x"` divides the middle (what is neither sink nor protected recent) by a ratio, `"50%"` keeps a share of all prompt
tokens, `"256"` is a number of slots. The nominal ratio is not the memory ratio, because protected slots do not shrink.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas.errors import KvatlasError


@dataclass(frozen=True)
class SlotBudget:
    """The slots of one layer: `n_sinks` first and `n_recent` last are protected, `n_mid` of the others stay."""

    n_sinks: int
    n_recent: int
    n_mid: int

    @property
    def total(self) -> int:
        """All slots that stay."""
        return self.n_sinks + self.n_recent + self.n_mid


@dataclass(frozen=True)
class Budget:
    """A budget as a user states it.

    Args:
        text: `"4x"`, `"50%"` or `"256"`.
        n_sinks, n_recent: protected slots at either end.
        skip_layers: indices of layers that stay full.
    """

    text: str
    n_sinks: int = 4
    n_recent: int = 32
    skip_layers: tuple[int, ...] = ()

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Budget:
        """Read the keys `budget`, `n_sinks`, `n_recent` and `skip_layers` of a cell's spec."""
        skipped: Sequence[int] = spec.get("skip_layers", ())
        return cls(str(spec["budget"]), int(spec["n_sinks"]), int(spec["n_recent"]), tuple(skipped))

    def resolve(self, n_tokens: int) -> SlotBudget:
        """Return the slots kept of a context of `n_tokens`.

        Raises KvatlasError when nothing of the middle would stay, or when the protected slots alone pass the budget.
        A budget of at least `n_tokens` is no error: everything stays.
        """
        protected = self.n_sinks + self.n_recent
        middle = n_tokens - protected
        if middle <= 0:
            raise KvatlasError(
                f"n_sinks + n_recent: {self.n_sinks} + {self.n_recent} protected slots leave nothing to compress "
                f"of {n_tokens} tokens; lower them or use a longer context"
            )
        n_mid = self._total(n_tokens, middle) - protected
        if n_mid <= 0:
            raise KvatlasError(
                f"budgets: '{self.text}' of {n_tokens} tokens keeps {n_mid + protected} slots, not more than the "
                f"{protected} protected by n_sinks + n_recent; raise the budget or protect fewer"
            )
        return SlotBudget(self.n_sinks, self.n_recent, min(n_mid, middle))

    def _total(self, n_tokens: int, middle: int) -> int:
        value = parse_budget(self.text)
        if self.text.endswith("x"):
            return self.n_sinks + self.n_recent + math.floor(middle / value)
        if self.text.endswith("%"):
            # Rounded first, so that 0.1 * 10 % does not become one slot more through a binary fraction.
            return math.ceil(round(n_tokens * value / 100, 9))
        return int(value)


def parse_budget(text: str) -> float:
    """Return the number in `"4x"`, `"50%"` or `"256"`. Raises KvatlasError when it is malformed or out of range."""
    number = text[:-1] if text.endswith(("x", "%")) else text
    value = float(number) if re.fullmatch(r"[0-9]+(\.[0-9]+)?", number) else math.nan
    if text.endswith("x"):
        valid, allowed = value >= 1, "a ratio of at least 1, like 4x"
    elif text.endswith("%"):
        valid, allowed = 0 < value <= 100, "a share above 0 and up to 100, like 50%"
    else:
        valid, allowed = value >= 1 and value == int(value), "4x, 50% or a whole number of slots, like 256"
    if not valid or math.isinf(value):
        raise KvatlasError(f"budgets: {text!r} is not {allowed}")
    return value
