"""Where a run's numbers come from, as two-column tables: models, RoPE inversion, hardware, packages.

It must not know which keys a model's provenance has; whatever config.json holds is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvatlas.reporting import labels
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.tables import Row, Table, build

SHORT = ("upstream", "source", "id", "revision", "package", "version", "path", "format", "license")
"""What the report says of a model, of all that its provenance holds."""


def short(config: Record) -> dict[str, Any]:
    """Return the models with where their weights are from, and hardware and packages in a sentence."""
    models = config.get("models") or {}
    rows = [
        Row((labels.model_label(name), "; ".join(f"{key} {origin[key]}" for key in SHORT if origin.get(key))))
        for name, origin in sorted((name, info.get("origin") or {}) for name, info in models.items())
    ]
    rest = dict(_flatten({**(config.get("hardware") or {}), **(config.get("packages") or {})}))
    return {
        "models": build(("Model", "Weights"), rows, words=(0, 1)),
        "rest": "; ".join(f"{key} {value}" for key, value in rest.items()) + ".",
    }


def pairs(config: Record) -> list[Table]:
    """Build the provenance tables that config.json has something for."""
    models = [pairs_table(f"Model {name}", info) for name, info in sorted((config.get("models") or {}).items())]
    telemetry = {
        str(row.get("model")): {k: v for k, v in row.items() if k != "model"}
        for row in config.get("rope_telemetry") or []
    }
    rest = [
        pairs_table("RoPE inversion", telemetry),
        pairs_table("Hardware", config.get("hardware")),
        pairs_table("Package", config.get("packages")),
    ]
    return [table for table in (*models, *rest) if table]


def pairs_table(name: str, values: Mapping[str, Any] | Sequence[Any] | None) -> Table:
    """Build a two-column table of a nested mapping, keys joined by dots; strings, numbers and lists are
    shown as they are.
    """
    return build((name, "Value"), (Row((key, value)) for key, value in _flatten(values or {})), words=(0, 1))


def _flatten(value: Any, prefix: str = "") -> Iterable[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _flatten(value[key], f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping | list) for item in value):
        for index, item in enumerate(value):
            yield from _flatten(item, f"{prefix}[{index}]")
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(str(item) for item in value) or labels.DASH
    else:
        yield (
            prefix,
            labels.DASH if value is None else f"{value:.3g}" if isinstance(value, float) else str(value),
        )
