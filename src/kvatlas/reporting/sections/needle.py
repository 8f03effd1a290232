"""The report's section on the needle study: its design, its results, and the claims that they decide.

It must not know Markdown; `templates/sections/needle.md.j2` turns it into a section. Verdicts come with the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvatlas.reporting import evidence, labels, ranking, recall_tables
from kvatlas.reporting.study_rows import Record, arms_of, groups, rows_of
from kvatlas.reporting.tables import Row, Table, build, muted, named, source

SHOWN_KEYS = ("n_sinks", "n_recent", "new_tokens")


def context(results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    if not (results.get("studies") or {}).get("needle"):
        return None
    keys = groups(results, "needle")
    shown = [
        {
            "name": f"{labels.model_label(model)}, {labels.mode_label(mode)}",
            "summary": recall_tables.summary(results, timings, "needle", model, mode),
            "depth": by_depth(results, model, mode),
            "contrasts": recall_tables.contrasts(results, "needle", model, mode),
            "retention": retention(results, model, mode),
            "ranges": ranges(results, model, mode),
        }
        for model, mode in keys
    ]
    sizes = [{int(arm["n"]) for arm in arms_of(results, "needle", *key)} for key in keys]
    return {
        "groups": shown,
        "grid": _grid(results),
        "rankings": ranking.rankings(results, "needle"),
        "caveats": ranking.caveats(results, "needle"),
        "uneven": any(len(counts) > 1 for counts in sizes),
        "configured": {key: study_config[key] for key in SHOWN_KEYS if key in study_config},
        "statements": evidence.statements(results, "needle"),
    }


def main_tables(results: Record, study_config: Record) -> list[Table]:
    """Build the main table of each model and question mode, without decode speeds."""
    keys = groups(results, "needle")
    return [recall_tables.summary(results, {}, "needle", model, mode) for model, mode in keys]


def short_tables(results: Record) -> list[tuple[str, Table]]:
    """Build the rankings of the modes with which the report's first page does not open."""
    return [
        (each.heading, each.table) for each in ranking.rankings(results, "needle") if each.mode != ranking.FIRST_MODE
    ]


def _grid(results: Record) -> list[dict[str, str]]:
    """List, for each model and mode, what was crossed with what and how much of it there is."""
    modes = list(labels.MODE_LABELS)
    rows = sorted(
        ((results["studies"]["needle"].get("grid") or {}).get("rows")) or [],
        key=lambda r: (r["model"], modes.index(r["mode"]) if r["mode"] in modes else len(modes), r["mode"]),
    )
    arms = {key: arms_of(results, "needle", *key) for key in {(row["model"], row["mode"]) for row in rows}}

    def counts(row: Record, name: str) -> str:
        return labels.spread([int(arm[name]) for arm in arms[row["model"], row["mode"]]])

    return [
        {
            "name": f"{labels.model_label(str(row['model']))}, {labels.mode_label(str(row['mode']))}",
            "contexts": ", ".join(str(context) for context in row["contexts"]),
            "seeds": str(len(row["seeds"])),
            "depths": ", ".join(f"{depth:g}%" for depth in row["depths"]),
            "haystacks": ", ".join(row["haystacks"]),
            "arms": str(len(row["arms"])),
            "n": counts(row, "n"),
            "clusters": counts(row, "n_clusters"),
        }
        for row in rows
        if row["mode"] != "no_context"
    ]


def by_depth(results: Record, model: str, mode: str) -> Table:
    """Build the recall-by-depth table, contexts pooled: share and hits out of n for each depth, then the
    total.
    """
    counts = {
        (row["arm"], row["depth"]): row
        for row in rows_of(results, "needle", "by_depth", model=model, mode=mode)
        if row["context"] == "all"
    }
    depths = sorted({depth for _, depth in counts})
    arms = arms_of(results, "needle", model, mode) if counts else []
    rows = []
    for arm in arms:
        cells = [_share(counts.get((arm["arm"], depth), {})) for depth in depths]
        rows.append(Row((*named(arm), *cells, _share(arm)), muted(arm), source("needle", arm)))
    return build(("Method", "Ratio", *(f"{depth:g}% depth" for depth in depths), "Total hits"), rows)


def _share(row: Record) -> str:
    hits, n = row.get("hits"), row.get("n")
    return f"{labels.percent(hits / n)} ({labels.hits(hits, n)})" if labels.known(hits) and n else labels.DASH


def retention(results: Record, model: str, mode: str) -> Table:
    """Build the table of needle slots kept, hits where the needle was kept whole, and hits among the full
    cache's hits.
    """
    columns = (
        "Method",
        "Ratio",
        "Needle slots kept",
        "Hits, needle kept whole",
        "95% interval",
        "Hits, full cache hit",
        "95% interval",
    )
    rows = [
        Row(
            (
                *named(arm),
                labels.percent(arm.get("needle_retained")),
                *_counts(arm.get("hit_given_retained")),
                *_counts(arm.get("recall_given_full")),
            ),
            muted(arm),
            source("needle", arm),
        )
        for arm in arms_of(results, "needle", model, mode)
    ]
    return build(columns, rows)


def _counts(value: Record | None) -> tuple[str, str]:
    value = value or {}
    return labels.hits(value.get("k"), value.get("n")), labels.interval(value.get("ci"), scale=100, unit="%")


def ranges(results: Record, model: str, mode: str) -> list[str]:
    """List, budget by budget, the range of recall and of the perplexities over the unquantized arms."""
    plain = [row for row in arms_of(results, "needle", model, mode) if row.get("quantizer", "none") == "none"]
    lines = []
    for budget in dict.fromkeys(str(row["budget"]) for row in plain):
        rows = [row for row in plain if str(row["budget"]) == budget]
        parts = [
            f"{name} {_range([row.get(key) for row in rows], show)}"
            for key, name, show in (
                ("recall", "recall", labels.percent),
                ("ref_ppl", "reference PPL", labels.perplexity),
                ("self_ppl", "self PPL", labels.perplexity),
            )
        ]
        count = f"{len(rows)} arm{'s' if len(rows) > 1 else ''}"
        lines.append(f"{labels.budget_label(budget)} ({count}): {'; '.join(parts)}")
    return lines


def _range(values: Sequence[Any], show: Callable[[Any], str]) -> str:
    known = [value for value in values if labels.known(value)]
    if not known:
        return labels.DASH
    low, high = show(min(known)), show(max(known))
    return low if low == high else f"{low} to {high}"
