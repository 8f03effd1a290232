"""Trials of the quantizer error study to its section of results.json: pooled errors, errors per layer, contrasts.

Two norms, because they disagree: L1 is sum|e| / sum|x| (this is what reproduces the published table), the Frobenius
ratio is sqrt(sum e^2 / sum x^2). Both are pooled over layers and chunks, and given per layer. Chunks are the clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.analysis.statistics import multiplicity, paired_tests
from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW, stratified_mean
from kvatlas.errors import KvatlasError

REFERENCES = ("fp8", "int8", "int4")
METRICS = ("key_l1", "value_l1", "key_frobenius", "value_frobenius")

Trial = Mapping[str, Any]
Row = dict[str, Any]


def aggregate(trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section {rows, granularities, by_layer, contrasts} of the study.

    `rows` and `contrasts` are of each quantizer's own granularity; `granularities` and `by_layer` hold all. Options:
    `pairs`, contrasts wanted beyond those with `REFERENCES`. Raises KvatlasError when there are no trials, or when quantizers
    were measured on different chunks.
    """
    if not trials:
        raise KvatlasError("quantizer_error: its table needs at least one trial; build its cells first")
    section: dict[str, Any] = {"rows": [], "granularities": [], "by_layer": [], "contrasts": []}
    for model in sorted({trial["model"] for trial in trials}):
        groups = _groups([trial for trial in trials if trial["model"] == model])
        arms = {arm: members for (arm, _), members in groups.items() if members[0]["own"]}
        _check(model, arms)
        for members in groups.values():
            row = _row(members)
            section["granularities"].append(row)
            section["rows"] += [row] if members[0]["own"] else []
            section["by_layer"] += _by_layer(members)
        section["contrasts"] += _contrasts(model, arms, (options or {}).get("pairs", ()))
    return section


def _groups(trials: Sequence[Trial]) -> dict[tuple[str, str], list[Trial]]:
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in sorted(trials, key=lambda t: (-t["bits_per_value"], t["arm"], not t["own"], t["chunk"])):
        groups.setdefault((trial["arm"], trial["granularity"]), []).append(trial)
    return groups


def _check(model: str, arms: Mapping[str, Sequence[Trial]]) -> None:
    chunks = {tuple(trial["id"] for trial in members) for members in arms.values()}
    if len(chunks) > 1:
        raise KvatlasError(
            f"quantizer_error: quantizers of model {model} were measured on different chunks; build all its cells"
        )


def error(trials: Sequence[Trial], metric: str, layer: int | None = None) -> float | None:
    """Return a relative error pooled over these trials and over all layers, or one; None where there is no signal."""
    name, norm = metric.split("_", 1)
    suffix = "l1" if norm == "l1" else "sq"

    def total(part: str) -> float:
        columns = [trial[f"{name}_{part}_{suffix}"] for trial in trials]
        return math.fsum(value for column in columns for value in (column if layer is None else [column[layer]]))

    signal = total("signal")
    if signal == 0:
        return None
    ratio = total("error") / signal
    return ratio if norm == "l1" else math.sqrt(ratio)


def _row(trials: Sequence[Trial]) -> Row:
    first = trials[0]
    row: Row = {key: first[key] for key in ("model", "arm", "quantizer", "granularity", "head_dim", "bits_per_value")}
    row |= {
        "context": first["context"],
        "n": len(trials),
        "n_clusters": len(trials),
        "descriptive": len(trials) < DESCRIPTIVE_BELOW,
        "saturated": sum(trial["saturated"] for trial in trials),
        "key_outlier": max(max(trial["key_outlier"]) for trial in trials),
    }
    for metric in METRICS:
        values = [value for trial in trials if (value := error([trial], metric)) is not None]
        interval = stratified_mean(values).interval() if values else None
        row[metric] = error(trials, metric)
        row[f"{metric}_ci"] = None if interval is None else list(interval)
    return row


def _by_layer(trials: Sequence[Trial]) -> list[Row]:
    first = trials[0]
    ids = {key: first[key] for key in ("model", "arm", "quantizer", "granularity", "own")}
    return [
        ids
        | {"layer": layer, "key_outlier": max(trial["key_outlier"][layer] for trial in trials)}
        | {metric: error(trials, metric, layer) for metric in METRICS}
        for layer in range(len(first["key_error_l1"]))
    ]


def _contrasts(model: str, arms: Mapping[str, Sequence[Trial]], extra: Sequence[Any]) -> list[Row]:
    pairs = [(arm, versus) for versus in REFERENCES for arm in arms if arm != versus]
    wanted = {(*pair, metric): None for pair in pairs for metric in METRICS}
    wanted |= {(pair.arm, pair.versus, pair.metric): None for pair in extra if pair.metric in METRICS}
    rows: list[Row] = []
    for arm, versus, metric in wanted:
        if arm not in arms or versus not in arms:
            continue
        columns = [[error([trial], metric) for trial in arms[name]] for name in (arm, versus)]
        differences = [a - b for a, b in zip(*columns, strict=True) if a is not None and b is not None]
        if not differences:
            continue
        ids = {"model": model, "arm": arm, "versus": versus, "metric": metric, "family": "other"}
        rows.append(ids | paired_tests.paired_difference(differences).as_row())
    for row, value in zip(rows, multiplicity.benjamini_hochberg([row["p"] for row in rows]), strict=True):
        row["p_bh"] = value
    return rows
