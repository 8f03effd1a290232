"""The report's part on the fixed-budget study: online language modelling, passkey and attention loss, as tables.

It must not know Markdown; `templates/fixed-budget.md.j2` turns it into a section. Verdicts come with the results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.reporting import evidence, labels, tables
from kvatlas.reporting.tables import Record, Row, Table, build

PROTOCOLS = {"single": "Single forward", "prefill": "Prefill, then score", "online": "Online"}
VERDICTS = ("better", "worse", "not resolved")


def context(results: Record, timings: Record, resolved: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the run has none of the three studies."""
    found = {
        "online": _online(results, resolved),
        "passkey": _passkey(results, timings, resolved),
        "loss": _loss(results),
    }
    return found if any(found.values()) else None


def _section(results: Record, study: str, name: str) -> list[Record]:
    rows: list[Record] = ((results.get("studies") or {}).get(study) or {}).get(name) or []
    return rows


def _models(rows: Sequence[Record]) -> list[str]:
    return sorted({str(row["model"]) for row in rows})


def _mine(rows: Sequence[Record], model: str) -> list[Record]:
    return sorted((row for row in rows if row["model"] == model), key=labels.arm_key)


def _online(results: Record, resolved: Record) -> dict[str, Any] | None:
    rows = _section(results, "online_lm", "rows")
    if not rows:
        return None
    checks = {row["model"]: row for row in _section(results, "online_lm", "checks")}
    groups = [
        {
            "name": labels.model_label(model),
            "main": online_table(_mine(rows, model)),
            "baseline": baseline_table(results, _mine(rows, model)),
            "answers": answers(results, _mine(rows, model)),
            "protocols": protocol_table(_section(results, "online_lm", "protocols"), model),
            "blocks": online_table(_mine(_section(results, "online_lm", "blocks"), model)),
            "identical": bool(checks[model]["identical_before_binding"]),
        }
        for model in _models(rows)
    ]
    first = rows[0]
    return {
        "groups": groups,
        "text": str(first["text"]),
        "length": _length(first),
        "block": str(first["block"]),
        "statements": evidence.statements(results, "online_lm"),
    }


def _length(row: Record) -> str:
    tokens, passages = labels.fixed(row["tokens"], 0), row.get("passages", 1)
    return f"The first {tokens} tokens" if passages == 1 else f"{passages} passages of {tokens} tokens each"


def online_table(rows: Sequence[Record]) -> Table:
    """Build the online table: perplexity and accuracy over all tokens and after the budget binds, and bytes."""
    columns = (
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
    lines = []
    for row in rows:
        gain = row["accuracy_gain_full"]
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
            labels.signed(None if gain is None else 100 * gain, 1),
            labels.interval(row["accuracy_gain_full_ci"], scale=100),
            labels.fixed(row["slots"], 0),
            labels.fixed(row["peak_slots"], 0),
            labels.fixed(row["resident_bf16_mib"], 2),
            labels.fixed(row["peak_mib"], 2),
            str(row["arm"]),
        )
        lines.append(Row(cells, source=tables.source("online_lm", row)))
    return build(columns, lines, words=(0, 1, 2, 15))


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
                labels.p_value(found["p_holm"]),
                found["verdict"],
                labels.fixed(found["n_clusters"], 0),
            )
        )
        for found, row in _primary(results, by_arm)
    ]
    return build(columns, lines, words=(0, 1, 2, 6))


def _primary(results: Record, by_arm: Mapping[str, Record]) -> list[tuple[Record, Record]]:
    model = next((row["model"] for row in by_arm.values()), None)
    found = [
        (contrast, by_arm[contrast["arm"]])
        for contrast in _section(results, "online_lm", "contrasts")
        if contrast["model"] == model and contrast["family"] == "primary" and contrast["arm"] in by_arm
    ]
    return sorted(found, key=lambda pair: labels.arm_key(pair[1]))


def answers(results: Record, rows: Sequence[Record]) -> list[dict[str, str]]:
    """Tell for each budget and protection which selectors are better, worse, or neither, than sink + recent."""
    by_arm = {row["arm"]: row for row in rows}
    groups: dict[tuple[str, str], dict[str, list[str]]] = {}
    for contrast, row in _primary(results, by_arm):
        place = (labels.budget_label(str(row["budget"])), labels.protected_label(row))
        verdicts = groups.setdefault(place, {verdict: [] for verdict in VERDICTS})
        verdicts[str(contrast["verdict"])].append(labels.method_label(str(row["method"])))
    return [
        {"place": ", ".join(place)}
        | {key.replace(" ", "_"): ", ".join(names) or "none" for key, names in found.items()}
        for place, found in groups.items()
    ]


def protocol_table(rows: Sequence[Record], model: str) -> Table:
    """Build the table of protocols: perplexity over the full cache's, per arm that more than one protocol scored."""
    mine = [row for row in rows if row["model"] == model]
    table = {(row["arm"], row["protocol"]): row for row in mine}
    protocols = [name for name in PROTOCOLS if any(row["protocol"] == name for row in mine)]
    if len(protocols) < 2:
        return build(("Method",), ())
    columns = ["Method", "Budget"]
    for name in protocols:
        columns += [f"{PROTOCOLS[name]}: PPL", "over full", "95% interval"]
    lines = []
    for arm in sorted((row for row in mine if row["protocol"] == "online"), key=labels.arm_key):
        found = [table.get((arm["arm"], name)) for name in protocols]
        if sum(row is not None for row in found) < 2:
            continue
        cells = [labels.method_label(str(arm["method"])), labels.budget_label(str(arm["budget"]))]
        for row in found:
            known = row or {}
            cells += [
                labels.perplexity(known.get("ppl")),
                labels.fixed(known.get("ratio"), 3),
                labels.interval(known.get("ratio_ci"), places=3),
            ]
        lines.append(Row(tuple(cells), source=tables.source("online_lm", arm)))
    return build(columns, lines, words=(0, 1))


def _passkey(results: Record, timings: Record, resolved: Record) -> dict[str, Any] | None:
    groups = [
        {
            "name": f"{labels.model_label(model)}, {labels.mode_label(mode)}",
            "summary": tables.summary(results, timings, "passkey", model, mode),
            "haystacks": haystack_table(results, resolved, model, mode),
            "contrasts": tables.contrasts(results, "passkey", model, mode),
        }
        for model, mode in tables.groups(results, "passkey")
    ]
    if not groups:
        return None
    return {"groups": groups, "statements": evidence.statements(results, "passkey")}


def haystack_table(results: Record, resolved: Record, model: str, mode: str) -> Table:
    """Build the passkey table: hits in each haystack, slots kept of the passkey and of the cache."""
    block = (resolved.get("studies") or {}).get("passkey") or {}
    rows = tables.section(results, "passkey", "by_haystack", model, mode)
    columns = (
        *("Method", "Budget", "Protected", "Haystack", "Hits", "95% interval", "Passkey slots kept"),
        *("Slots", "Cache saved", "Arm"),
    )
    lines = []
    for row in sorted(rows, key=lambda row: (*labels.arm_key(row), row["haystack"])):
        protection = str(row.get("protection") or "base")
        kept = block | ((block.get("protections") or {}).get(protection) or {})
        cells = (
            *(labels.method_label(str(row["method"])), labels.budget_label(str(row["budget"]), str(row["quantizer"]))),
            labels.DASH if row["method"] == "full" else labels.protected_label(kept),
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


def _loss(results: Record) -> dict[str, Any] | None:
    rows = _section(results, "attention_loss", "rows")
    if not rows:
        return None
    maps = {(row["model"], row["arm"]): row for row in _section(results, "attention_loss", "maps")}
    return {
        "table": loss_table(rows, maps),
        "statements": evidence.statements(results, "attention_loss"),
        "queries": str(rows[0]["queries"]),
        "context": labels.fixed(rows[0]["context"], 0),
    }


def loss_table(rows: Sequence[Record], maps: Mapping[Any, Record]) -> Table:
    """Build the attention-loss table: ALR per query head and per KV head, beside the expectation of a random order."""
    columns = (
        *("Model", "Method", "ALR, query heads", "95% interval", "SD over queries", "ALR, KV heads", "95% interval"),
        *("Random order, expected", "ALR over random", "Highest layers", "Prompts", "Arm"),
    )
    lines = []
    for row in sorted(rows, key=lambda row: (row["model"], labels.method_key(str(row["method"])))):
        found = maps[row["model"], row["arm"]]
        by_layer = [sum(heads) / len(heads) for heads in found["alr"]]
        highest = sorted(range(len(by_layer)), key=lambda layer: -by_layer[layer])[:3]
        spreads = [value for heads in found["alr_sd_queries"] for value in heads]
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
