"""Published against reproduced, and what reanalyses move, as tables of the report.

Knows results.json, not how its numbers came about; must not know Markdown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvatlas.reporting import labels
from kvatlas.reporting.evidence import VERDICTS, effect_text, judged
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.tables import Row, Table, build

RELATIONS = {
    "same model": "The same model",
    "same shape": "Same architecture and size, other fine-tune and weights",
    "same family": "Same architecture, other size, fine-tune and weights",
}
"""How a model of the run is related to the published one -> the heading under which their numbers stand together."""


def published(results: Record) -> dict[str, Table]:
    """Build published against reproduced, heading -> table, for every published number that this run's grid matches."""
    compared = [row for row in results.get("published") or [] if row.get("status") == "compared"]
    tables = {
        heading: _beside([row for row in compared if row["relation"] == relation])
        for relation, heading in RELATIONS.items()
    }
    return {heading: table for heading, table in tables.items() if table.rows}


def counts(results: Record) -> Table:
    """Count, table by table and model by model, the published numbers compared and those inside our interval."""
    compared = [row for row in results.get("published") or [] if row.get("status") == "compared"]
    groups: dict[tuple[str, str, str, str], list[Any]] = {}
    for row in compared:
        key = (str(row["table"]), str(row["model"]), str(row["relation"]), str(row["subset"]))
        groups.setdefault(key, []).append(row.get("inside"))
    lines = []
    for (table, model, relation, subset), inside in groups.items():
        known = [each for each in inside if each is not None]
        cells = (
            table,
            labels.model_label(model),
            relation,
            subset,
            str(len(inside)),
            labels.hits(sum(known), len(known)),
        )
        lines.append(Row(cells))
    columns = ("Published table", "Our model", "Relation", "Seeds", "Numbers compared", "Inside our 95% interval")
    return build(columns, lines, words=(0, 1, 2, 3))


def _beside(compared: Sequence[Record]) -> Table:
    columns = (
        "Model",
        "Table",
        "Row",
        "Number",
        "Seeds",
        "Published",
        "Reproduced",
        "Difference",
        "Our 95% interval",
        "Published is inside",
        "n",
    )
    rows = []
    for row in compared:
        inside = {True: "yes", False: "no", None: labels.DASH}[row.get("inside")]
        cells = (
            labels.model_label(str(row["model"])),
            str(row["table"]),
            f"{row['label']} ({row['arm']})",
            str(row["metric"]),
            str(row.get("subset") or labels.DASH),
            labels.fixed(row.get("published"), 3),
            labels.fixed(row.get("reproduced"), 3),
            labels.signed(row.get("difference"), 3),
            labels.interval(row.get("ci"), places=3),
            inside,
            labels.fixed(row.get("n"), 0),
        )
        rows.append(Row(cells))
    return build(columns, rows, words=(0, 1, 2, 3, 4, 9))


def not_reproduced(results: Record) -> Table:
    """Build the list of published numbers that this run did not cover, counted by table and reason."""
    rows = (row for row in results.get("published") or [] if row.get("status") != "compared")
    counts = Counter((str(row["table"]), str(row["reason"])) for row in rows)
    lines = (Row((table, str(count), reason)) for (table, reason), count in counts.items())
    return build(("Table", "Numbers", "Status"), lines, words=(0, 2))


def reanalyses(results: Record) -> Table:
    """Build the table of reanalyses: each published conclusion beside its reanalysis."""
    claims = {(claim["id"], claim["model"]): claim for claim in judged(results)}
    columns = (
        "Model",
        "Source",
        "Published conclusion",
        "Means say",
        "Verdict",
        "Change",
        "Reanalysed conclusion",
        "Effect",
        "95% interval",
        "Verdict, reanalysed",
        "What the means say",
    )
    rows = []
    for row in results.get("reanalyses") or []:
        before, after = (claims.get((row[key], row["model"])) for key in ("published", "corrected"))
        if before is None or after is None:
            continue
        cells = (
            labels.model_label(str(row["model"])),
            str(row["source_title"]),
            str(before["sentence"]),
            {True: "yes", False: "no"}.get(before["by_means"], labels.DASH),
            str(before["verdict"]),
            str(row["change"]),
            str(after["sentence"]),
            *effect_text(after),
            str(after["verdict"]),
            str(row["outcome"]),
        )
        rows.append(Row(cells, row["outcome"] == "not run"))
    return build(columns, rows, words=(0, 1, 2, 3, 4, 5, 6, 9, 10))


def read_by_means(results: Record) -> dict[str, str]:
    """Count the source studies' claims that hold when means are read as they are, and how the tests judge those."""
    readable = [claim for claim in judged(results) if claim["source"] != "own" and claim.get("by_means") is not None]
    holding = Counter(str(claim["verdict"]) for claim in readable if claim["by_means"])
    counts = {verdict.replace(" ", "_"): str(holding[verdict]) for verdict in VERDICTS}
    return {"claims": str(len(readable)), "holding": str(holding.total())} | counts
