"""Tables that the recall studies (needle, passkey) share: aggregated rows to cells, in the published order of columns.

It must not know Markdown. Each row of the main table ends with the arm id, which selects its trials in
trials.parquet and its cell files in results.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvatlas.analysis.studies import arm_twins
from kvatlas.reporting import labels, tables
from kvatlas.reporting.study_rows import Record, arms_of, decode_speed, rows_of
from kvatlas.reporting.tables import Row, Table, build, muted, named, source


def summary(results: Record, timings: Record, study: str, model: str, mode: str) -> Table:
    """Build the main table: the published columns in their order, then interval, ratio, KL, bytes, clusters and arm."""
    arms = arms_of(results, study, model, mode)
    speed = decode_speed(timings, study, model, mode)
    rows = []
    for arm in arms:
        size = arm.get("resident_bf16_mib")
        cells = (
            *named(arm),
            labels.fixed(arm.get("kv_mib") if size is None else size, 2),
            labels.percent_se(arm.get("recall"), arm.get("recall_se_published")),
            labels.perplexity(arm.get("ref_ppl"), arm.get("ref_ppl_se")),
            labels.perplexity(arm.get("self_ppl")),
            labels.fixed(arm.get("embed_cosine"), 4),
            labels.fixed(arm.get("hidden_cosine"), 4),
            labels.fixed(speed.get(str(arm["arm"])), 1),
            labels.interval(arm.get("recall_ci"), scale=100, unit="%"),
            labels.times(arm.get("actual_ratio")),
            labels.fixed(arm.get("kl"), 3),
            labels.fixed(tables.scaled(arm.get("kv_mib"), labels.MIB), 0),
            labels.fixed(arm.get("n_clusters"), 0),
            str(arm["arm"]),
        )
        rows.append(Row(cells, muted(arm), source(study, arm)))
    return build(_summary_columns(arms), rows, words=(0, 14))


def _summary_columns(arms: Sequence[Record]) -> tuple[str, ...]:
    n = labels.spread(sorted({int(row["n"]) for row in arms}))
    return (
        "Method",
        "Ratio",
        "Mean KV (MiB)",
        f"NIAH recall (N = {n}) ± SE (published formula)",
        "Ref PPL (TF) ± SE",
        "Self PPL",
        "Embed CosSim",
        "Hidden CosSim",
        "Tok/s",
        "Recall, 95% interval",
        "Actual ratio",
        "KL",
        "Resident bytes",
        "Clusters",
        "Arm",
    )


def contrasts(results: Record, study: str, model: str, mode: str) -> Table:
    """Build the paired differences: recall to the full cache and to SnapKV, reference PPL to the full cache."""
    arms = arms_of(results, study, model, mode)
    by_arm = {row["arm"]: row for row in arms}
    by_pair: dict[tuple[str, str, str], Record] = {}
    for row in rows_of(results, study, "contrasts", model=model, mode=mode):
        by_pair[str(row["arm"]), _versus(row, by_arm), str(row["metric"])] = row
    columns = (
        "Method",
        "Ratio",
        "Recall against full (points)",
        "95% interval",
        "Holm p",
        "Recall against SnapKV (points)",
        "95% interval",
        "Holm p",
        "Ref PPL over full",
        "95% interval",
        "BH p",
        "Clusters",
    )
    rows = []
    for arm in arms:
        name = str(arm["arm"])
        full, snapkv = by_pair.get((name, "full", "recall")), by_pair.get((name, "snapkv", "recall"))
        nll = by_pair.get((name, "full", "ref_nll"))
        if full is None and snapkv is None and nll is None:
            continue
        cells = (
            *named(arm),
            *_points(full),
            *_points(snapkv),
            *_ppl_ratio(nll),
            labels.fixed(arm.get("n_clusters"), 0),
        )
        rows.append(Row(cells, muted(arm), source(study, arm)))
    return build(columns, rows)


def _versus(row: Record, arms: Mapping[str, Record]) -> str:
    versus = str(row["versus"])
    if versus == row["arm"]:
        return "itself"
    arm = arms.get(str(row["arm"]))
    return "snapkv" if arm and versus == arm_twins.of_reference(arm, arms) else versus


def _points(row: Record | None) -> tuple[str, str, str]:
    row = row or {}
    return tables.points(row.get("diff")), labels.interval(row.get("ci"), scale=100), labels.p_value(row.get("p_holm"))


def _ppl_ratio(row: Record | None) -> tuple[str, str, str]:
    row = row or {}
    bounds = [tables.exp(bound) for bound in row.get("ci") or ()]
    interval = labels.interval(bounds, places=2, unit="x")
    return tables.ppl_ratio(row.get("diff")), interval, labels.p_value(row.get("p_bh"))
