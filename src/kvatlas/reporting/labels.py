"""How names and numbers are spelled in every figure and table: one label per id, one format per kind of
number.

Methods are spelled as their registrations say, models as their catalog does. It must not know tables, figures or where a
number came from. A missing number is shown as a dash, never as zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvatlas.compression import methods
from kvatlas.lm.catalog import model_titles
from kvatlas.paths import MODELS_FILE

DASH = "–"
MINUS = "−"
MIB = 2**20
MANY = 10_000  # clusters that nobody would run
FULL_LABEL = "Full cache"

MODE_LABELS = {
    "aware": "question-aware",
    "agnostic": "question-agnostic",
    "reuse": "reused cache",
    "no_context": "no context",
}


def method_label(method: str) -> str:
    """Spell a method id as its registration does; a variant is named after its method, an unknown id by its own
    words.
    """
    base, variant = methods.split_variant(method)
    registered = methods.policies().get(base)
    label = FULL_LABEL if base == methods.FULL else registered.label if registered else base.replace("_", " ")
    return f"{label} ({variant.replace('_', ' ')})" if variant else label


def model_label(model: str) -> str:
    """Spell a model by its title in config/models.yaml, or by its name where the catalog does not have it."""
    return model_titles(Path(MODELS_FILE).resolve()).get(model, model)


def mode_label(mode: str) -> str:
    """Spell a question mode."""
    return MODE_LABELS.get(mode, mode)


def budget_label(budget: str, quantizer: str = "none") -> str:
    """Spell a budget string and its quantizer: "none" -> "1x", "256" -> "256 slots", ("4x", "int8") ->
    "4x, int8".
    """
    label = "1x" if budget == "none" else f"{budget} slots" if budget.isdecimal() else budget
    return label if quantizer == "none" else f"{label}, {quantizer}"


def arm_label(row: Mapping[str, Any]) -> str:
    """Spell an arm: method and budget; the full cache has no budget to name."""
    label = method_label(str(row["method"]))
    quantizer = str(row.get("quantizer") or "none")
    if row["budget"] == "none":
        # The full cache run a second time (the noise floor) has an arm id of its own.
        twin = str(row.get("arm", "")).removeprefix(str(row["method"])).removesuffix(quantizer).strip("-")
        label = f"{label} ({twin})" if twin else label
        return label if quantizer == "none" else f"{label}, {quantizer}"
    return f"{label} {budget_label(str(row['budget']), quantizer)}{protection_suffix(row)}"


def protection_suffix(row: Mapping[str, Any]) -> str:
    """Spell the protection of an arm that is not the study's own: ", fair"."""
    protection = str(row.get("protection") or "base")
    return "" if protection == "base" else f", {protection}"


def protected_label(row: Mapping[str, Any]) -> str:
    """Spell what an arm protects besides what its method protects itself: "4 sinks + 32 recent protected"."""
    ends = [f"{row[key]} {name}" for key, name in (("n_sinks", "sinks"), ("n_recent", "recent")) if row.get(key)]
    parts = [f"{' + '.join(ends)} protected" if ends else "nothing protected"]
    layers = row.get("skip_layers")
    if layers:
        parts.append(f"layers {', '.join(map(str, layers))} full")
    return ", ".join(parts)


def budget_key(budget: str) -> tuple[int, float]:
    """Sort key of a budget string, the full cache first and the smallest cache last."""
    if budget == "none":
        return (0, 0.0)
    kind = 1 if budget.endswith("x") else 2 if budget.endswith("%") else 3
    number = float(re.sub(r"[^0-9.]", "", budget) or 0)
    return (kind, number if kind == 1 else -number)


def method_key(method: str) -> tuple[int, str]:
    """Sort key of a method id: the full cache, then the order of the registrations, a variant right after its
    method, unknown ids last by name.
    """
    base, _ = methods.split_variant(method)
    registered = methods.policies().get(base)
    order = -1 if base == methods.FULL else registered.order if registered else methods.UNRANKED + 1
    return (order, method)


def quantizer_label(quantizer: str) -> str:
    """Name a quantizer with the granularity of its keys, where it has one."""
    if quantizer == methods.NO_QUANTIZER:
        return "model's own"
    registered = methods.quantizers().get(quantizer)
    return f"{quantizer} ({registered.granularity})" if registered and registered.granularity else quantizer


def quantizer_key(quantizer: str) -> tuple[int, str]:
    """Sort key of a quantizer: none first, then by falling number of bits, unknown ones last."""
    if quantizer == methods.NO_QUANTIZER:
        return (-99, "")
    registered = methods.quantizers().get(quantizer)
    return (-registered.bits if registered else 0, quantizer)


def arm_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Sort key of an arm: budget, then method, then quantizer, as the published tables are ordered."""
    quantizer = quantizer_key(str(row.get("quantizer") or "none"))
    return (
        budget_key(str(row["budget"])),
        method_key(str(row["method"])),
        quantizer,
        str(row.get("arm", "")),
    )


def known(value: Any) -> bool:
    """Return whether a number is there: not null and finite."""
    return isinstance(value, int | float) and math.isfinite(value)


def fixed(value: Any, places: int) -> str:
    """Format a number with fixed decimals, thousands separated, with a real minus sign."""
    if not known(value):
        return DASH
    text = f"{value:,.{places}f}"
    if float(text.replace(",", "")) == 0:
        text = text.lstrip("-")
    return text.replace("-", MINUS)


def percent(share: Any) -> str:
    """Format a share in [0, 1] as a percentage with one decimal."""
    return f"{fixed(share * 100, 1)}%" if known(share) else DASH


def percent_se(share: Any, error: Any) -> str:
    """Format a share with its standard error, both in percent."""
    return f"{percent(share)} ± {percent(error)}" if known(share) and known(error) else percent(share)


def interval(bounds: Sequence[Any] | None, *, scale: float = 1.0, places: int = 1, unit: str = "") -> str:
    """Format an interval [lo, hi], multiplied by `scale`: "76.3 to 98.1%"."""
    if bounds is None or len(bounds) != 2 or not all(known(bound) for bound in bounds):
        return DASH
    low, high = (fixed(bound * scale, places) for bound in bounds)
    return f"{low} to {high}{unit}"


def perplexity(value: Any, error: Any = None) -> str:
    """Format a perplexity, with its standard error where there is one; fewer decimals for large values."""
    if not known(value):
        return DASH
    places = 3 if value < 100 else 1 if value < 10_000 else 0
    return f"{fixed(value, places)} ± {fixed(error, places)}" if known(error) else fixed(value, places)


def signed(value: Any, places: int, unit: str = "") -> str:
    """Format a difference with its sign."""
    text = fixed(value, places)
    if text == DASH:
        return text
    zero = float(text.replace(MINUS, "-").replace(",", "")) == 0
    return f"{'' if zero or text.startswith(MINUS) else '+'}{text}{unit}"


def clusters_needed(value: Any) -> str:
    """Spell how many clusters would settle a claim; past `MANY` the number says no more than that."""
    if not known(value):
        return DASH
    return f"over {fixed(MANY, 0)}" if value > MANY else f"about {fixed(value, 0)}"


def p_value(value: Any) -> str:
    """Format a p-value with three decimals; "<0.001" under that."""
    if not known(value):
        return DASH
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def times(value: Any) -> str:
    """Format a ratio: "3.43x"."""
    return f"{fixed(value, 2)}x" if known(value) else DASH


def hits(k: Any, n: Any) -> str:
    """Format a count of hits out of n: "36/40"."""
    return f"{int(k)}/{int(n)}" if known(k) and known(n) and n > 0 else DASH


def spread(values: Sequence[int]) -> str:
    """Format counts that may differ between rows: "40" or "20 to 40"."""
    if not values:
        return DASH
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"
