"""The report's section on the reconstruction error of quantizers.

It must not know Markdown; `templates/sections/quantizer_error.md.j2` turns it into a section.
"""

from __future__ import annotations

from typing import Any

from kvatlas.compression import methods
from kvatlas.compression.methods import FULL
from kvatlas.reporting import evidence, labels, tables
from kvatlas.reporting.ranking import with_interval
from kvatlas.reporting.study_rows import Record, models_of, rows_of
from kvatlas.reporting.tables import Row, Table, build

GRANULARITY = {"token": "keys and values per token", "channel": "keys and values per channel"}


def context(results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    rows = rows_of(results, "quantizer_error")
    if not rows:
        return None
    models = models_of(rows)
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


def main_tables(results: Record, study_config: Record) -> list[Table]:
    """Build the reconstruction error table of each model."""
    return [error_table(results, model) for model in models_of(rows_of(results, "quantizer_error"))]


def short_tables(results: Record) -> list[tuple[str, Table]]:
    """Build the L1 error of keys and values of each model's quantizers."""
    columns = (
        "Quantizer",
        "Scaled",
        "Bits/value",
        "Key error, L1 (95% interval)",
        "Value error, L1 (95% interval)",
        "Chunks",
    )
    found = []
    for model in models_of(rows_of(results, "quantizer_error")):
        lines = [
            Row(
                (
                    str(row["quantizer"]),
                    _scaled(row),
                    labels.fixed(row["bits_per_value"], 2),
                    *(
                        with_interval(labels.fixed(row[key], 4), labels.interval(row[f"{key}_ci"], places=4))
                        for key in ("key_l1", "value_l1")
                    ),
                    labels.fixed(row["n_clusters"], 0),
                ),
                source=_source(row),
            )
            for row in rows_of(results, "quantizer_error", "granularities", model=model)
        ]
        found.append((labels.model_label(model), build(columns, lines, words=(0, 1))))
    return found


def _scaled(row: Record) -> str:
    """Name what shares a scale; a number without one is a dash."""
    registered = methods.quantizers().get(str(row["quantizer"]))
    floats = registered is None or not registered.granularity
    return labels.DASH if floats else GRANULARITY.get(str(row["granularity"]), str(row["granularity"]))


def _source(row: Record) -> str:
    return tables.source("quantizer_error", {**row, "arm": f"{FULL}-{row['quantizer']}"})


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
    for row in rows_of(results, "quantizer_error", "granularities", model=model):
        cells = (
            str(row["quantizer"]),
            _scaled(row),
            labels.fixed(row["bits_per_value"], 2),
            labels.fixed(row["key_l1"], 5),
            labels.interval(row["key_l1_ci"], places=5),
            labels.fixed(row["value_l1"], 5),
            labels.interval(row["value_l1_ci"], places=5),
            labels.fixed(row["key_frobenius"], 5),
            labels.fixed(row["value_frobenius"], 5),
            labels.fixed(row["saturated"], 0),
        )
        lines.append(Row(cells, source=_source(row)))
    return build(columns, lines, words=(0, 1))
