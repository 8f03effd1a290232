"""The report's section on passkey retrieval.

It must not know Markdown; `templates/sections/passkey.md.j2` turns it into a section. Verdicts come with the results.
"""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import evidence, labels, ranking, recall_tables, tables
from kvatlas.reporting.study_rows import Record, arms_of, groups, rows_of
from kvatlas.reporting.tables import Row, Table, build


def context(results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    shown = [
        {
            "name": f"{labels.model_label(model)}, {labels.mode_label(mode)}",
            "summary": recall_tables.summary(results, timings, "passkey", model, mode),
            "haystacks": haystack_table(results, study_config, model, mode),
            "contrasts": recall_tables.contrasts(results, "passkey", model, mode),
        }
        for model, mode in groups(results, "passkey")
    ]
    return {"groups": shown, "statements": evidence.statements(results, "passkey")} if shown else None


def main_tables(results: Record, study_config: Record) -> list[Table]:
    """Build the table of hits by haystack of each model and question mode."""
    return [haystack_table(results, study_config, model, mode) for model, mode in groups(results, "passkey")]


def short_tables(results: Record) -> list[tuple[str, Table]]:
    """Build the recall of each model and question mode, haystacks pooled; lines are no ranking, their budgets differ."""
    return [
        (
            f"{labels.model_label(model)}, {labels.mode_label(mode)}",
            ranking.table(results, "passkey", model, mode, arms_of(results, "passkey", model, mode)),
        )
        for model, mode in groups(results, "passkey")
    ]


def haystack_table(results: Record, study_config: Record, model: str, mode: str) -> Table:
    """Build the passkey table: hits in each haystack, slots kept of the passkey and of the cache."""
    rows = rows_of(results, "passkey", "by_haystack", model=model, mode=mode)
    columns = (
        *("Method", "Budget", "Protected", "Haystack", "Hits", "95% interval", "Passkey slots kept"),
        *("Slots", "Cache saved", "Arm"),
    )
    lines = []
    for row in sorted(rows, key=lambda row: (*labels.arm_key(row), row["haystack"])):
        protection = str(row.get("protection") or "base")
        protected = {**study_config, **((study_config.get("protections") or {}).get(protection) or {})}
        cells = (
            *(labels.method_label(str(row["method"])), labels.budget_label(str(row["budget"]), str(row["quantizer"]))),
            labels.DASH if row["method"] == "full" else labels.protected_label(protected),
            str(row["haystack"]),
            labels.hits(row["hits"], row["n"]),
            labels.interval(row["recall_ci"], scale=100, unit="%"),
            labels.percent(row["needle_retained"]),
            labels.fixed(row["slots"], 1),
            labels.percent(row["saved_share"]),
            str(row["arm"]),
        )
        lines.append(Row(cells, tables.muted(row), tables.source("passkey", row)))
    return build(columns, lines, words=(0, 1, 2, 3, 9))
