"""What a run's comparisons rest on: the tasks' gates and the noise floor, as tables.

Like `tables`, it knows no Markdown; gates arrive judged.
"""

from __future__ import annotations

from kvatlas.reporting import labels, tables
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.tables import Row, Table, build


def gates(results: Record) -> Table:
    """Build the task-validity table: full cache and no context per model, study, mode and context."""
    rows = []
    for study in results.get("studies") or {}:
        for gate in rows_of(results, study, "gates"):
            passed = bool(gate.get("passed"))
            cells = (
                labels.model_label(str(gate["model"])),
                str(gate.get("study") or labels.DASH),
                labels.mode_label(str(gate["mode"])),
                str(gate["context"]),
                labels.percent(gate.get("full_recall")),
                labels.percent(gate.get("no_context_recall")),
                "compared" if passed else "shown, not compared",
                str(gate.get("reason") or labels.DASH),
            )
            rows.append(Row(cells, not passed))
    columns = ("Model", "Study", "Mode", "Context", "Full cache", "Without context", "Arms are", "Reason")
    return build(columns, rows, words=(0, 1, 2, 6, 7))


def gate_counts(results: Record) -> dict[str, str]:
    """Count the tasks that have a gate, and name those that failed it."""
    rows = [gate for study in results.get("studies") or {} for gate in rows_of(results, study, "gates")]
    failed = [
        f"{gate.get('study') or labels.DASH}, {labels.mode_label(str(gate['mode']))}, {gate['context']}"
        for gate in rows
        if not gate.get("passed")
    ]
    return {"all": str(len(rows)), "passed": str(len(rows) - len(failed)), "failed": "; ".join(failed)}


def noise_floor(results: Record) -> Table:
    """Build the noise floor: the full cache against a repeat of itself."""
    rows = []
    for name, study in (results.get("studies") or {}).items():
        for row in ((study or {}).get("noise_floor") or {}).get("rows") or []:
            cells = (
                labels.model_label(str(row["model"])),
                labels.mode_label(str(row["mode"])),
                str(row["arm"]),
                labels.hits(row.get("flips"), row.get("n")),
                labels.interval(row.get("flips_ci"), scale=100, unit="%"),
                labels.hits(row.get("outputs_changed"), row.get("n")),
                labels.fixed(row.get("kl"), 6),
                labels.fixed(row.get("ref_ppl_ratio"), 5),
            )
            rows.append(Row(cells, source=tables.source(name, row)))
    columns = (
        "Model",
        "Mode",
        "Arm",
        "Hits flipped",
        "95% interval",
        "Outputs changed",
        "KL",
        "Ref PPL ratio",
    )
    return build(columns, rows, words=(0, 1, 2))
