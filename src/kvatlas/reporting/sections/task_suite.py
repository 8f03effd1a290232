"""The report's section on the task suite: accuracies, perplexities and recommendations.

It must not know Markdown; `templates/sections/task_suite.md.j2` turns it into a section. Verdicts come with the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvatlas.analysis.statistics.multiplicity import ALPHA
from kvatlas.analysis.studies import suite_contrasts
from kvatlas.reporting import evidence, labels, ranking, tables
from kvatlas.reporting.study_labels import FAMILY_LABELS, PROTOCOL_LABELS
from kvatlas.reporting.study_rows import Record, arms_of, decode_speed, models_of, rows_of
from kvatlas.reporting.tables import Row, Table, build

PROTOCOLS = {name: PROTOCOL_LABELS[protocol].lower() for protocol, name in suite_contrasts.PROTOCOLS.items()}
SUITE_COLUMNS = (
    "Method",
    "Budget",
    "Precision",
    "Task accuracy",
    "Over control (points)",
    "KV payload (KiB)",
    "Of fp32 control",
    "Accuracy, 95% interval",
    "Difference, 95% interval",
    "Holm p",
    "Non-inferior (5 points), Holm p",
    "Resident (KiB)",
    "Peak (KiB)",
    "Of bf16 cache",
    "Tokens written",
    "Saturated",
    "Tok/s",
    "Arm",
)


def context(results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    rows = rows_of(results, "task_suite")
    if not rows:
        return None
    grid = _grid(results)
    groups = []
    for model in models_of(rows):
        speed = decode_speed(timings, "task_suite", model, "suite")
        size = grid.get(model, {})
        groups.append(
            {
                "name": labels.model_label(model),
                "n": str(size.get("n", "")),
                "clusters": str(size.get("n_clusters", "")),
                "families": ", ".join(
                    f"{FAMILY_LABELS[name].lower()} {count}" for name, count in (size.get("families") or {}).items()
                ),
                "main": suite_table(results, model, speed),
                "unresolved": unresolved(results, model),
                "families_table": family_table(results, model),
                "depth": depth_table(results, model),
                "interaction": interaction_table(results, model),
                "perplexity": perplexity_table(results, model),
                "recommendations": recommendation_table(results, model),
            }
        )
    return {
        "groups": groups,
        "context": str(rows[0]["context"]),
        "schedule": str(rows[0]["schedule"]).replace("_", " "),
        "passage": str(study_config.get("passage_tokens", "")),
        "statements": evidence.statements(results, "task_suite"),
    }


def main_tables(results: Record, study_config: Record) -> list[Table]:
    """Build the suite's main table of each model, without decode speeds."""
    return [suite_table(results, model, {}) for model in models_of(rows_of(results, "task_suite"))]


def short_tables(results: Record) -> list[tuple[str, Table]]:
    """Build the accuracy of each model's arms, largest cache first."""
    columns = (
        *("Arm", "Of bf16 cache", "KV (KiB)", "Accuracy (95% interval)", "Over control, points (95% interval)"),
        *("Reading", "Span kept", "Online PPL"),
    )
    found = []
    for model in models_of(rows_of(results, "task_suite")):
        against = ranking.differences(results, "task_suite", model, None, "accuracy")
        lines = []
        for row in sorted(arms_of(results, "task_suite", model), key=lambda row: -row["kv_kib"]):
            contrast = against.get(str(row["arm"]))
            cells = (
                labels.arm_label(row),
                labels.times(row["resident_bf16_mib"] / row["full_bf16_mib"]),
                labels.fixed(row["kv_kib"], 0),
                ranking.with_interval(labels.percent(row["accuracy"]), labels.interval(row["accuracy_ci"], scale=100)),
                ranking.against_full(contrast),
                ranking.reading(contrast),
                labels.percent(row.get("needle_retained")),
                labels.perplexity(row.get("online_ppl")),
            )
            lines.append(_line(cells, row))
        found.append((labels.model_label(model), build(columns, lines, words=(0, 5))))
    return found


def recommendations(results: Record) -> list[tuple[str, Table]]:
    """Build the recommendations by workload of each model."""
    models = models_of(rows_of(results, "task_suite", "recommendations"))
    return [(labels.model_label(model), recommendation_table(results, model)) for model in models]


def _grid(results: Record) -> dict[str, Record]:
    study = (results.get("studies") or {}).get("task_suite") or {}
    return {row["model"]: row for row in (study.get("grid") or {}).get("rows") or []}


def _contrasts(results: Record, model: str, metric: str, versus: str) -> dict[str, Record]:
    rows = rows_of(results, "task_suite", "contrasts", model=model)
    return {row["arm"]: row for row in rows if (row["metric"], row["versus"]) == (metric, versus)}


def _names(row: Record) -> tuple[str, str, str]:
    method = labels.method_label(str(row["method"]))
    return method, labels.budget_label(str(row["budget"])), labels.quantizer_label(str(row["quantizer"]))


def _line(cells: tuple[str, ...], row: Record) -> Row:
    """One line of an arm, muted where its gate failed, with the anchor of its cells."""
    return Row(cells, tables.muted(row), tables.source("task_suite", row))


def suite_table(results: Record, model: str, speed: Mapping[str, float]) -> Table:
    """Build the suite's main table: the published columns, then interval, tests, bytes of all tensors, peak and speed."""
    against = _contrasts(results, model, "accuracy", "full")
    lines = []
    for row in arms_of(results, "task_suite", model):
        test = against.get(str(row["arm"]), {})
        cells = (
            *_names(row),
            f"{labels.percent(row['accuracy'])} ({labels.hits(row['hits'], row['n'])})",
            tables.points(test.get("diff")),
            labels.fixed(row["kv_kib"], 0),
            labels.times(row["kv_share"]),
            labels.interval(row["accuracy_ci"], scale=100, unit="%"),
            labels.interval(test.get("ci"), scale=100),
            labels.p_value(test.get("p_holm")),
            labels.p_value(test.get("p_non_inferior_holm")),
            labels.fixed(row["resident_kib"], 0),
            labels.fixed(row["peak_kib"], 0),
            labels.times(row["resident_bf16_mib"] / row["full_bf16_mib"]),
            labels.fixed(row["tokens_written"], 0),
            labels.fixed(row["saturated"], 0),
            labels.fixed(speed.get(str(row["arm"])), 1),
            str(row["arm"]),
        )
        lines.append(_line(cells, row))
    return build(SUITE_COLUMNS, lines, words=(0, 1, 2, 17))


def unresolved(results: Record, model: str) -> dict[str, str]:
    """Name the arms whose accuracy differs from the control's, those shown non-inferior, and those left open."""
    rows = {str(row["arm"]): row for row in arms_of(results, "task_suite", model)}
    arms: dict[str, list[str]] = {"resolved": [], "non_inferior": [], "open": []}
    for arm, test in _contrasts(results, model, "accuracy", "full").items():
        within = test["p_non_inferior_holm"] is not None and test["p_non_inferior_holm"] <= ALPHA
        kind = "resolved" if test["resolved"] else "non_inferior" if within and test["gate_passed"] else "open"
        arms[kind].append(labels.arm_label(rows[arm]))
    return {kind: "; ".join(names) or "none" for kind, names in arms.items()}


def family_table(results: Record, model: str) -> Table:
    """Build the table of hits by task family; families that failed their gate are named in their column."""
    rows = {(row["arm"], row["family"]): row for row in rows_of(results, "task_suite", "families", model=model)}
    present = [family for family in FAMILY_LABELS if any(key[1] == family for key in rows)]
    passed = {family: all(row["gate_passed"] for key, row in rows.items() if key[1] == family) for family in present}
    titles = [FAMILY_LABELS[family] + ("" if passed[family] else " (gate failed)") for family in present]
    lines = []
    for arm in arms_of(results, "task_suite", model):
        cells = []
        for family in present:
            row = rows[arm["arm"], family]
            cells += [labels.hits(row["hits"], row["n"]), labels.interval(row["ci"], scale=100, unit="%")]
        lines.append(_line((*_names(arm), *cells), arm))
    columns = [name for title in titles for name in (title, "95% interval")]
    return build(("Method", "Budget", "Precision", *columns), lines, words=(0, 1, 2))


def depth_table(results: Record, model: str) -> Table:
    """Build the needle depth sweep."""
    rows = {(row["arm"], row["depth"]): row for row in rows_of(results, "task_suite", "by_depth", model=model)}
    depths = sorted({depth for _, depth in rows})
    trends = {
        row["arm"]: row
        for row in rows_of(results, "task_suite", "contrasts", model=model)
        if row["metric"] == "accuracy_last_minus_first_depth"
    }
    lines = []
    for arm in arms_of(results, "task_suite", model) if depths else []:
        cells = [labels.hits(rows[arm["arm"], depth]["hits"], rows[arm["arm"], depth]["n"]) for depth in depths]
        trend = trends.get(arm["arm"], {})
        ends = (tables.points(trend.get("diff")), labels.interval(trend.get("ci"), scale=100))
        kept = labels.percent(arm.get("needle_retained"))
        lines.append(_line((*_names(arm), *cells, *ends, kept), arm))
    columns = (*(f"{depth:g}% depth" for depth in depths), "Last minus first (points)", "95% interval", "Span kept")
    return build(("Method", "Budget", "Precision", *columns), lines, words=(0, 1, 2))


def interaction_table(results: Record, model: str) -> Table:
    """Build the eviction x quantization table: the four accuracies and the interaction contrast."""
    rows = {str(row["arm"]): row for row in arms_of(results, "task_suite", model)}
    columns = (
        "Arm",
        "Full cache",
        "Quantized alone",
        "Evicted alone",
        "Both",
        "Interaction (points)",
        "95% interval",
        "BH p",
        "Clusters",
    )
    lines = []
    for arm, test in _contrasts(results, model, "accuracy_interaction", "additive").items():
        means = test["means"]
        cells = (
            labels.arm_label(rows[arm]),
            *(labels.percent(means[key]) for key in ("full", "quantized", "evicted", "both")),
            tables.points(test["diff"]),
            labels.interval(test["ci"], scale=100),
            labels.p_value(test["p_bh"]),
            labels.fixed(test["n_clusters"], 0),
        )
        lines.append(_line(cells, {**rows[arm], "gate_passed": test["gate_passed"]}))
    return build(columns, lines)


def perplexity_table(results: Record, model: str) -> Table:
    """Build perplexity three ways against task accuracy."""
    rows = [row for row in arms_of(results, "task_suite", model) if "single_forward_ppl" in row]
    tests = {name: _contrasts(results, model, f"{name}_nll", "full") for name in PROTOCOLS}
    lines = []
    for row in rows:
        cells: list[str] = []
        for name in PROTOCOLS:
            cells += [
                labels.perplexity(row[f"{name}_ppl"]),
                tables.ppl_ratio(tests[name].get(str(row["arm"]), {}).get("diff")),
            ]
        lines.append(_line((*_names(row), *cells, labels.percent(row["accuracy"])), row))
    columns = [text for title in PROTOCOLS.values() for text in (f"PPL, {title}", "over full")]
    return build(("Method", "Budget", "Precision", *columns, "Task accuracy"), lines, words=(0, 1, 2))


def recommendation_table(results: Record, model: str) -> Table:
    """Build the recommendations: for each workload the smallest arm that its test admits, or that there is none."""
    rows = {str(row["arm"]): row for row in arms_of(results, "task_suite", model)}
    lines = []
    for row in rows_of(results, "task_suite", "recommendations", model=model):
        arm = row["arm"]
        name = "none of these arms is shown to, at this n" if arm is None else labels.arm_label(rows[arm])
        cells = (
            str(row["workload"]),
            f"the smallest cache that {row['criterion']}",
            name,
            labels.times(row["share"]),
            labels.p_value(row["p"]),
            labels.hits(len(row["shown"]), row["candidates"]),
        )
        lines.append(Row(cells))
    columns = ("Workload", "Wanted", "Recommended", "Of bf16 cache", "Holm p", "Arms that pass")
    return build(columns, lines, words=(0, 1, 2))
