"""The report's section on online language modelling.

It must not know Markdown; `templates/sections/online_lm.md.j2` turns it into a section. Verdicts come with the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.reporting import evidence, labels, tables
from kvatlas.reporting.ranking import with_interval
from kvatlas.reporting.study_labels import PROTOCOL_LABELS
from kvatlas.reporting.study_rows import Record, arms_of, models_of, rows_of
from kvatlas.reporting.tables import Row, Table, build

VERDICTS = ("better", "worse", "not resolved")
ONLINE_COLUMNS = (
    "Method",
    "Budget",
    "Protected",
    "PPL, all tokens",
    "95% interval",
    "Accuracy",
    "PPL after the budget binds",
    "Over full",
    "95% interval",
    "Accuracy over full (points)",
    "95% interval",
    "Slots",
    "Peak slots",
    "Resident KV (MiB, bf16)",
    "Peak held (MiB)",
    "Arm",
)


def context(results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    rows = rows_of(results, "online_lm")
    if not rows:
        return None
    checks = {row["model"]: row for row in rows_of(results, "online_lm", "checks")}
    groups = []
    for model in models_of(rows):
        arms = arms_of(results, "online_lm", model)
        blocks = sorted(rows_of(results, "online_lm", "blocks", model=model), key=labels.arm_key)
        groups.append(
            {
                "name": labels.model_label(model),
                "main": online_table(arms),
                "baseline": baseline_table(results, arms),
                "answers": answers(results, arms),
                "protocols": protocol_table(rows_of(results, "online_lm", "protocols", model=model)),
                "blocks": online_table(blocks),
                "identical": bool(checks[model]["identical_before_binding"]),
            }
        )
    first = rows[0]
    return {
        "groups": groups,
        "text": str(first["text"]),
        "length": _length(first),
        "block": str(first["block"]),
        "statements": evidence.statements(results, "online_lm"),
    }


def main_tables(results: Record, study_config: Record) -> list[Table]:
    """Build the online table of each model."""
    models = models_of(rows_of(results, "online_lm"))
    return [online_table(arms_of(results, "online_lm", model)) for model in models]


def short_tables(results: Record) -> list[tuple[str, Table]]:
    """Build the perplexity after the budget binds of each model, over the full cache's and over sink + recent's."""
    columns = (
        *("Method", "Protected", "Slots", "KV (MiB)", "PPL after the budget binds"),
        *("Over full (95% interval)", "Over sink + recent (95% interval)", "Passages"),
    )
    found = []
    for model in models_of(rows_of(results, "online_lm")):
        lines = [
            Row(
                (
                    labels.arm_label({**row, "protection": "base"}),
                    labels.DASH if row["method"] == "full" else labels.protected_label(row),
                    labels.fixed(row["slots"], 0),
                    labels.fixed(row["resident_bf16_mib"], 2),
                    labels.perplexity(row["ppl"] if row["method"] == "full" else row["post_ppl"]),
                    *(
                        with_interval(labels.fixed(row[key], 3), labels.interval(row[f"{key}_ci"], places=3))
                        for key in ("post_ratio_full", "post_ratio_baseline")
                    ),
                    labels.fixed(row.get("passages", 1), 0),
                ),
                source=tables.source("online_lm", row),
            )
            for row in arms_of(results, "online_lm", model)
        ]
        found.append((labels.model_label(model), build(columns, lines, words=(0, 1))))
    return found


def _length(row: Record) -> str:
    tokens, passages = labels.fixed(row["tokens"], 0), row.get("passages", 1)
    return f"The first {tokens} tokens" if passages == 1 else f"{passages} passages of {tokens} tokens each"


def online_table(rows: Sequence[Record]) -> Table:
    """Build the online table: perplexity and accuracy over all tokens and after the budget binds, and bytes."""
    lines = []
    for row in rows:
        cells = (
            labels.method_label(str(row["method"])),
            labels.budget_label(str(row["budget"]), str(row["quantizer"])),
            labels.DASH if row["method"] == "full" else labels.protected_label(row),
            labels.perplexity(row["ppl"]),
            labels.interval(row["ppl_ci"], places=2),
            labels.percent(row["accuracy"]),
            labels.perplexity(row["post_ppl"]),
            labels.fixed(row["post_ratio_full"], 3),
            labels.interval(row["post_ratio_full_ci"], places=3),
            tables.points(row["accuracy_gain_full"]),
            labels.interval(row["accuracy_gain_full_ci"], scale=100),
            labels.fixed(row["slots"], 0),
            labels.fixed(row["peak_slots"], 0),
            labels.fixed(row["resident_bf16_mib"], 2),
            labels.fixed(row["peak_mib"], 2),
            str(row["arm"]),
        )
        lines.append(Row(cells, source=tables.source("online_lm", row)))
    return build(ONLINE_COLUMNS, lines, words=(0, 1, 2, 15))


def baseline_table(results: Record, rows: Sequence[Record]) -> Table:
    """Build the primary comparison: perplexity after the budget binds over that of sink + recent at the same budget."""
    by_arm = {row["arm"]: row for row in rows}
    columns = (
        "Method",
        "Budget",
        "Protected",
        "PPL over sink + recent",
        "95% interval",
        "Holm p",
        "Verdict",
        "Clusters",
    )
    lines = [
        Row(
            (
                labels.method_label(str(row["method"])),
                labels.budget_label(str(row["budget"]), str(row["quantizer"])),
                labels.protected_label(row),
                labels.fixed(row["post_ratio_baseline"], 3),
                labels.interval(row["post_ratio_baseline_ci"], places=3),
                labels.p_value(contrast["p_holm"]),
                contrast["verdict"],
                labels.fixed(contrast["n_clusters"], 0),
            )
        )
        for contrast, row in _primary(results, by_arm)
    ]
    return build(columns, lines, words=(0, 1, 2, 6))


def _primary(results: Record, by_arm: Mapping[str, Record]) -> list[tuple[Record, Record]]:
    model = next((row["model"] for row in by_arm.values()), None)
    pairs = [
        (contrast, by_arm[contrast["arm"]])
        for contrast in rows_of(results, "online_lm", "contrasts")
        if contrast["model"] == model and contrast["family"] == "primary" and contrast["arm"] in by_arm
    ]
    return sorted(pairs, key=lambda pair: labels.arm_key(pair[1]))


def answers(results: Record, rows: Sequence[Record]) -> list[dict[str, str]]:
    """List for each budget and protection which selectors are better, worse, or neither, than sink + recent."""
    by_arm = {row["arm"]: row for row in rows}
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for contrast, row in _primary(results, by_arm):
        matched = (labels.budget_label(str(row["budget"])), labels.protected_label(row))
        verdicts = groups.setdefault(matched, {verdict: [] for verdict in VERDICTS})
        verdicts[str(contrast["verdict"])].append(labels.method_label(str(row["method"])))
    return [
        {"matched": ", ".join(matched)}
        | {verdict.replace(" ", "_"): ", ".join(methods) or "none" for verdict, methods in verdicts.items()}
        for matched, verdicts in groups.items()
    ]


def protocol_table(rows: Sequence[Record]) -> Table:
    """Build the table of protocols: perplexity over the full cache's, per arm that more than one protocol scored."""
    table = {(row["arm"], row["protocol"]): row for row in rows}
    protocols = [name for name in PROTOCOL_LABELS if any(row["protocol"] == name for row in rows)]
    if len(protocols) < 2:
        return build(("Method",), ())
    columns = ["Method", "Budget"]
    for name in protocols:
        columns += [f"{PROTOCOL_LABELS[name]}: PPL", "over full", "95% interval"]
    lines = []
    for arm in sorted((row for row in rows if row["protocol"] == "online"), key=labels.arm_key):
        by_protocol = [table.get((arm["arm"], name)) for name in protocols]
        if sum(row is not None for row in by_protocol) < 2:
            continue
        cells = [labels.method_label(str(arm["method"])), labels.budget_label(str(arm["budget"]))]
        for row in by_protocol:
            known = row or {}
            cells += [
                labels.perplexity(known.get("ppl")),
                labels.fixed(known.get("ratio"), 3),
                labels.interval(known.get("ratio_ci"), places=3),
            ]
        lines.append(Row(tuple(cells), source=tables.source("online_lm", arm)))
    return build(columns, lines, words=(0, 1))
