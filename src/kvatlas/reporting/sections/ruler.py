"""The report's section on the long-context tasks: macro averages, every task by itself, reuse of one compressed cache.

It must not know Markdown; `templates/sections/ruler.md.j2` turns it into a section. Verdicts come with the results.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvatlas.reporting import evidence, labels, ranking, tables
from kvatlas.reporting.study_rows import Record, arms_of, groups, rows_of
from kvatlas.reporting.tables import Row, Table, build
from kvatlas.tasks.ruler import all_tasks

STUDY = "ruler"
MACRO_COLUMNS = (
    "Method",
    "Budget",
    "Mean score",
    "95% interval",
    "Against full (points)",
    "95% interval",
    "Holm p",
    "Against SnapKV (points)",
    "95% interval",
    "BH p",
    "Resident (MiB)",
    "Peak (MiB)",
    "Of bf16 cache",
    "Answer tokens kept",
    "Clusters",
    "Arm",
)


def context(results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
    """Collect what the section shows; None when the study was not run."""
    shown = [
        {
            "name": f"{labels.model_label(model)}, {mode_name(mode)}",
            "macro": macro_table(results, model, mode),
            "averaged": averaged(results, model, mode),
            "tasks": task_table(results, model, mode),
            "questions": question_table(results, model, mode),
        }
        for model, mode in groups(results, STUDY)
    ]
    if not shown:
        return None
    lengths = sorted({length for row in rows_of(results, STUDY) for length in row["contexts"]})
    return {
        "groups": shown,
        "contexts": ", ".join(labels.fixed(length, 0) for length in lengths),
        "stream_block": str(study_config.get("stream_block", "")),
        "statements": evidence.statements(results, STUDY),
    }


def main_tables(results: Record, study_config: Record) -> list[Table]:
    """Build the table of macro averages of each model and question mode."""
    return [macro_table(results, model, mode) for model, mode in groups(results, STUDY)]


def short_tables(results: Record) -> list[tuple[str, Table]]:
    """Build the mean score of each model's arms, mode by mode."""
    columns = (
        *("Arm", "Of bf16 cache", "Resident (MiB)", "Peak (MiB)", "Mean score (95% interval)"),
        *("Against full, points (95% interval)", "Reading", "Clusters"),
    )
    found = []
    for model, mode in groups(results, STUDY):
        against = ranking.differences(results, STUDY, model, mode, "score")
        lines = []
        for row in arms_of(results, STUDY, model, mode):
            contrast = against.get(str(row["arm"]))
            cells = (
                labels.arm_label(row),
                labels.times(row["resident_bf16_mib"] / row["full_bf16_mib"]),
                labels.fixed(row["kv_mib"], 2),
                labels.fixed(row["peak_mib"], 2),
                ranking.with_interval(labels.percent(row["score"]), labels.interval(row["score_ci"], scale=100)),
                ranking.against_full(contrast),
                ranking.FAILED if tables.muted(row) else ranking.reading(contrast),
                labels.fixed(row["n_clusters"], 0),
            )
            lines.append(Row(cells, tables.muted(row), tables.source(STUDY, row)))
        found.append((f"{labels.model_label(model)}, {mode_name(mode)}", build(columns, lines, words=(0, 6))))
    return found


def mode_name(mode: str) -> str:
    """Spell a question mode with its schedule."""
    question, _, schedule = mode.partition("-")
    names = {"reuse": "several questions, each to the compressed cache", "turns": "several questions, turn by turn"}
    name = names.get(question, labels.mode_label(question))
    return f"{name}, evicted after {schedule.replace('_', ' ')}" if schedule else name


def averaged(results: Record, model: str, mode: str) -> str:
    """Name the tasks that the macro average is over."""
    (full,) = [row for row in arms_of(results, STUDY, model, mode) if row["arm"] == "full"]
    return ", ".join(all_tasks()[task].label.lower() for task in full["tasks"])


def macro_table(results: Record, model: str, mode: str) -> Table:
    """Build the table of macro averages: score, paired differences, resident and peak bytes, what was kept."""
    by_pair = _contrasts(results, model, mode)
    lines = []
    for row in arms_of(results, STUDY, model, mode):
        arm = str(row["arm"])
        against = [by_pair.get((arm, reference), {}) for reference in ("full", "snapkv")]
        cells = (
            *tables.named(row),
            labels.percent(row["score"]),
            labels.interval(row["score_ci"], scale=100, unit="%"),
            tables.points(against[0].get("diff")),
            labels.interval(against[0].get("ci"), scale=100),
            labels.p_value(against[0].get("p_holm")),
            tables.points(against[1].get("diff")),
            labels.interval(against[1].get("ci"), scale=100),
            labels.p_value(against[1].get("p_bh")),
            labels.fixed(row["kv_mib"], 2),
            labels.fixed(row["peak_mib"], 2),
            labels.times(row["resident_bf16_mib"] / row["full_bf16_mib"]),
            labels.percent(row["needle_retained"]),
            labels.fixed(row["n_clusters"], 0),
            arm,
        )
        lines.append(Row(cells, tables.muted(row), tables.source(STUDY, row)))
    return build(MACRO_COLUMNS, lines, words=(0, 1, 15))


def _contrasts(results: Record, model: str, mode: str) -> Mapping[tuple[str, str], Record]:
    """The contrasts of the macro average by (arm, full or snapkv)."""
    rows = rows_of(results, STUDY, "contrasts", model=model, mode=mode)
    return {
        (str(row["arm"]), "full" if row["versus"] == "full" else "snapkv"): row
        for row in rows
        if row["metric"] == "score"
    }


def task_table(results: Record, model: str, mode: str) -> Table:
    """Build the table of scores by task; tasks that failed their gate are named in their column."""
    rows = {(row["arm"], row["task"]): row for row in rows_of(results, STUDY, "tasks", model=model, mode=mode)}
    present = list(dict.fromkeys(task for _, task in rows))
    passed = {task: all(row["gate_passed"] for key, row in rows.items() if key[1] == task) for task in present}
    columns = [all_tasks()[task].label + ("" if passed[task] else " (gate failed)") for task in present]
    lines = []
    for arm in arms_of(results, STUDY, model, mode):
        scores = [labels.percent(rows.get((arm["arm"], task), {}).get("score")) for task in present]
        lines.append(Row((*tables.named(arm), *scores), tables.muted(arm), tables.source(STUDY, arm)))
    return build(("Method", "Budget", *columns), lines, words=(0, 1))


def question_table(results: Record, model: str, mode: str) -> Table:
    """Build the table of scores by question number; without lines where one question was asked."""
    rows = {
        (row["arm"], row["question_number"]): row
        for row in rows_of(results, STUDY, "questions", model=model, mode=mode)
    }
    numbers = sorted({number for _, number in rows})
    lines = []
    for arm in arms_of(results, STUDY, model, mode) if numbers else []:
        cells: list[str] = []
        for number in numbers:
            row = rows[arm["arm"], number]
            cells += [labels.percent(row["score"]), labels.interval(row["score_ci"], scale=100, unit="%")]
        lines.append(Row((*tables.named(arm), *cells), tables.muted(arm), tables.source(STUDY, arm)))
    columns = [text for number in numbers for text in (f"Question {number}", "95% interval")]
    return build(("Method", "Budget", *columns), lines, words=(0, 1))
