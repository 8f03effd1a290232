"""The report's table of quantizer reconstruction errors.

It must not know Markdown; the quantization study's template shows what it returns.
"""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import evidence, labels, tables
from kvatlas.reporting.tables import Record, Row, Table, build

GRANULARITY = {"token": "keys and values per token", "channel": "keys and values per channel"}


def _section(results: Record, name: str) -> list[Record]:
    rows: list[Record] = ((results.get("studies") or {}).get("quantizer_error") or {}).get(name) or []
    return rows


def context(results: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    rows = _section(results, "rows")
    if not rows:
        return None
    models = sorted({str(row["model"]) for row in rows})
    return {
        "groups": [{"name": labels.model_label(model), "table": error_table(results, model)} for model in models],
        "context": str(rows[0]["context"]),
        "chunks": str(rows[0]["n"]),
        "outliers": ", ".join(
            f"{labels.model_label(model)} "
            + labels.times(max(row["key_outlier"] for row in rows if row["model"] == model))
            for model in models
        ),
        "statements": evidence.statements(results, "quantizer_error"),
    }


def error_table(results: Record, model: str) -> Table:
    """Build the reconstruction error table: bits per value, L1 and Frobenius ratios of keys and of values."""
    columns = (
        "Quantizer",
        "Scaled",
        "Bits/value",
        "Key error (L1)",
        "95% interval",
        "Value error (L1)",
        "95% interval",
        "Key error (Frobenius)",
        "Value error (Frobenius)",
        "Saturated values",
    )
    lines = []
    for row in (row for row in _section(results, "granularities") if row["model"] == model):
        floats = not str(row["quantizer"]).startswith(("int", "kivi"))
        cells = (
            str(row["quantizer"]),
            labels.DASH if floats else GRANULARITY.get(str(row["granularity"]), str(row["granularity"])),
            labels.fixed(row["bits_per_value"], 2),
            labels.fixed(row["key_l1"], 5),
            labels.interval(row["key_l1_ci"], places=5),
            labels.fixed(row["value_l1"], 5),
            labels.interval(row["value_l1_ci"], places=5),
            labels.fixed(row["key_frobenius"], 5),
            labels.fixed(row["value_frobenius"], 5),
            labels.fixed(row["saturated"], 0),
        )
        lines.append(Row(cells, source=tables.source("quantizer_error", {**row, "arm": row["quantizer"]})))
    return build(columns, lines, words=(0, 1))
