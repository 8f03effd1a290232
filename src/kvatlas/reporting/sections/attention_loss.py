"""The report's section on attention loss.

It must not know Markdown; `templates/sections/attention_loss.md.j2` turns it into a section. Verdicts come with the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.reporting import evidence, labels, tables
from kvatlas.reporting.ranking import with_interval
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.tables import Row, Table, build


def context(results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    rows = rows_of(results, "attention_loss")
    if not rows:
        return None
    (table,) = main_tables(results, study_config)
    return {
        "table": table,
        "statements": evidence.statements(results, "attention_loss"),
        "queries": str(rows[0]["queries"]),
        "context": labels.fixed(rows[0]["context"], 0),
    }


def main_tables(results: Record, study_config: Record) -> list[Table]:
    """Build the attention-loss table of all models."""
    maps = {(row["model"], row["arm"]): row for row in rows_of(results, "attention_loss", "maps")}
    return [loss_table(rows_of(results, "attention_loss"), maps)]


def short_tables(results: Record) -> list[tuple[str, Table]]:
    """Build the attention loss of each method beside that of a random order."""
    columns = (
        "Model",
        "Method",
        "ALR, query heads (95% interval)",
        "ALR, KV heads (95% interval)",
        "Over random",
        "Prompts",
    )
    lines = [
        Row(
            (
                labels.model_label(str(row["model"])),
                labels.method_label(str(row["method"])),
                *(
                    with_interval(labels.fixed(row[key], 3), labels.interval(row[f"{key}_ci"], places=3))
                    for key in ("alr", "alr_kv")
                ),
                labels.times(row["relative"]),
                labels.fixed(row["n_clusters"], 0),
            ),
            source=tables.source("attention_loss", row),
        )
        for row in sorted(rows_of(results, "attention_loss"), key=lambda row: (row["model"], row["alr"]))
    ]
    return [("Attention loss (ALR): 0 loses as little as can be", build(columns, lines, words=(0, 1)))]


def loss_table(rows: Sequence[Record], maps: Mapping[Any, Record]) -> Table:
    """Build the attention-loss table: ALR per query head and per KV head, beside the expectation of a random order."""
    columns = (
        *("Model", "Method", "ALR, query heads", "95% interval", "SD over queries", "ALR, KV heads", "95% interval"),
        *("Random order, expected", "ALR over random", "Highest layers", "Prompts", "Arm"),
    )
    lines = []
    for row in sorted(rows, key=lambda row: (row["model"], labels.method_key(str(row["method"])))):
        heads_of = maps[row["model"], row["arm"]]
        by_layer = [sum(heads) / len(heads) for heads in heads_of["alr"]]
        highest = sorted(range(len(by_layer)), key=lambda layer: -by_layer[layer])[:3]
        spreads = [value for heads in heads_of["alr_sd_queries"] for value in heads]
        cells = (
            labels.model_label(str(row["model"])),
            labels.method_label(str(row["method"])),
            labels.fixed(row["alr"], 4),
            labels.interval(row["alr_ci"], places=4),
            labels.fixed(sum(spreads) / len(spreads), 4),
            labels.fixed(row["alr_kv"], 4),
            labels.interval(row["alr_kv_ci"], places=4),
            labels.fixed(row["random_alr"], 4),
            labels.fixed(row["relative"], 3),
            ", ".join(f"{layer} ({labels.fixed(by_layer[layer], 3)})" for layer in highest),
            str(row["n_clusters"]),
            str(row["arm"]),
        )
        lines.append(Row(cells, source=tables.source("attention_loss", row)))
    return build(columns, lines, words=(0, 1, 9, 11))
