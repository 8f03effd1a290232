"""Trials of the task suite to its section of results.json: rows, families, depths, contrasts, gates, recommendations.

A pure function of the trials. The control is the full cache in the model's own numbers (fp32 as published).
Task instances are the clusters: every arm answers the same prompts of an instance, so arms are compared in pairs.
Perplexities are of one passage, scored three ways; there, blocks of 64 tokens are the clusters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW, exact_interval, recall_interval, stratified_mean
from kvatlas.analysis.studies import recommendations, streams
from kvatlas.analysis.studies.clusters import mean
from kvatlas.analysis.studies.sizes import KIB, MIB, averages
from kvatlas.analysis.studies.suite_contrasts import (
    ACCURACY,
    FAMILIES,
    METRICS,
    PROTOCOLS,
    Arms,
    Row,
    Trial,
    contrast_rows,
    instance_values,
)
from kvatlas.analysis.studies.validity import NO_CONTEXT, gate
from kvatlas.errors import KvatlasError
from kvatlas.grid.arms import BASE
from kvatlas.grid.policy_parameters import FULL, NO_QUANTIZER

__all__ = ["METRICS", "aggregate"]


def aggregate(trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section {rows, families, by_depth, contrasts, gates, recommendations, grid} of the task suite.

    Options: `pairs`, contrasts wanted beyond the standard ones (`claims.pairs`). Raises KvatlasError when there are no
    trials, no full cache, or when arms did not see the same prompts.
    """
    if not trials:
        raise KvatlasError("task_suite: its table needs at least one trial; build its cells first")
    names = ("rows", "families", "by_depth", "contrasts", "gates", "recommendations")
    section: dict[str, Any] = {name: [] for name in names} | {"grid": {"rows": []}}
    for model in sorted({trial["model"] for trial in trials}):
        of_model = [trial for trial in trials if trial["model"] == model]
        arms = _arms([t for t in of_model if t["mode"] != NO_CONTEXT and "hit" in t])
        passages = {(t["arm"], t["protocol"]): t for t in of_model if "protocol" in t}
        _check(model, arms)
        gates = _gates(model, arms[FULL], [t for t in of_model if t["mode"] == NO_CONTEXT])
        passed = {gate["family"]: gate["passed"] for gate in gates}
        gate = {
            "gate_passed": passed["all"],
            "family_gates_passed": {name: passed[name] for name in FAMILIES if name in passed},
        }
        rows = [_row(model, arm, members, passages) | gate for arm, members in arms.items()]
        contrasts = contrast_rows(model, arms, passages, passed, (options or {}).get("pairs", ()))
        section["rows"] += rows
        section["families"] += [row for arm, members in arms.items() for row in _families(model, arm, members, passed)]
        section["by_depth"] += [row for arm, members in arms.items() for row in _by_depth(model, arm, members)]
        section["contrasts"] += contrasts
        section["gates"] += gates
        section["recommendations"] += recommendations.choose(model, rows, contrasts)
        section["grid"]["rows"].append(_grid(model, arms))
    sizes = [row["size"] for row in section["grid"]["rows"]]
    section["grid"]["descriptive"] = "descriptive" in sizes
    return section


def _arms(trials: Sequence[Trial]) -> Arms:
    arms: Arms = {}
    for trial in sorted(trials, key=lambda t: (*_order(t), t["instance"], t["id"])):
        arms.setdefault(trial["arm"], []).append(trial)
    return arms


def _order(trial: Trial) -> tuple[Any, ...]:
    return (trial["arm"] != FULL, trial["method"] != FULL, trial["budget"], trial["method"], trial["arm"])


def _check(model: str, arms: Arms) -> None:
    if FULL not in arms:
        raise KvatlasError(f"task_suite: model {model} has no full cache to compare with; build its cell")
    wanted = [trial["id"] for trial in arms[FULL]]
    for arm, members in arms.items():
        if [trial["id"] for trial in members] != wanted:
            raise KvatlasError(
                f"task_suite: model {model}, arm {arm} did not see the prompts of the full cache; build all cells of "
                "the study before its table"
            )


def _row(model: str, arm: str, trials: Sequence[Trial], passages: Mapping[tuple[str, str], Trial]) -> Row:
    first = trials[0]
    values = list(instance_values(trials, ACCURACY).values())
    row: Row = {
        "model": model,
        "mode": first["mode"],
        "arm": arm,
        **{key: first[key] for key in ("method", "policy", "budget", "quantizer", "schedule", "context")},
        "protection": first.get("protection", BASE),
        "n": len(trials),
        "n_clusters": len(values),
        "hits": sum(trial["hit"] for trial in trials),
        ACCURACY: stratified_mean(values).value,
        "accuracy_ci": list(recall_interval(values, len(trials))),
        "descriptive": len(values) < DESCRIPTIVE_BELOW,
        **_sizes(trials),
        "needle_retained": mean(trial["needle_retained"] for trial in trials),
        "cells": sorted({trial["cell"] for trial in trials if "cell" in trial}),
    }
    for name, chosen in _parts(trials).items():
        hits = sum(trial["hit"] for trial in chosen)
        row |= {name: hits / len(chosen), f"{name}_ci": list(exact_interval(hits, len(chosen)))}
    for protocol, name in PROTOCOLS.items():
        trial = passages.get((arm, protocol))
        if trial is not None:
            value, interval = streams.mean_interval(trial["nlls"])
            row[f"{name}_nll"], row[f"{name}_ppl"] = value, math.exp(value)
            row[f"{name}_ppl_ci"] = None if interval is None else [math.exp(bound) for bound in interval]
            row[f"{name}_accuracy"] = mean(float(hit) for hit in trial["hits"])
    return row


def _parts(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """The trials of each family and of each needle depth, under the names of their fields."""
    parts = {f"accuracy_{family}": [t for t in trials if t["family"] == family] for family in FAMILIES}
    for depth in sorted({t["depth"] for t in trials if t["depth"] is not None}):
        parts[f"accuracy_needle_d{depth:g}"] = [t for t in trials if t["depth"] == depth]
    return {name: chosen for name, chosen in parts.items() if chosen}


def _sizes(trials: Sequence[Trial]) -> Row:
    """Sizes per prompt when the prompt is in; `kv_kib` is keys, values, scales and zeros alone, as published.

    `kv_share` is over the fp32 full cache, `kv_share_of_bf16` over the one that is deployed, where plain arms are bf16 too.
    """
    average = averages(trials)
    resident, payload, full = average("resident_bytes"), average("payload_bytes"), average("full_bf16_bytes")
    plain = trials[0]["quantizer"] == NO_QUANTIZER
    # The deployed cache is bf16, also where the run stored fp32.
    deployed = full * average("slots") / average("full_slots") + resident - payload if plain else resident
    return {
        "kv_kib": payload / KIB,
        "resident_kib": resident / KIB,
        "peak_kib": average("peak_bytes") / KIB,
        "kv_share": payload / (2 * full),
        "kv_share_of_bf16": (full * average("slots") / average("full_slots") if plain else payload) / full,
        "kv_mib": resident / MIB,
        "payload_mib": payload / MIB,
        "peak_mib": average("peak_bytes") / MIB,
        "resident_bf16_mib": deployed / MIB,
        "full_bf16_mib": full / MIB,
        "byte_ratio": full / deployed if deployed else None,
        "actual_ratio": average("full_slots") / average("slots"),
        "slots": average("slots"),
        "full_slots": average("full_slots"),
        "tokens_written": average("tokens_written"),
        "saturated": max(trial["saturated"] for trial in trials),
    }


def _families(model: str, arm: str, trials: Sequence[Trial], passed: Mapping[str, bool]) -> list[Row]:
    rows = []
    for family in FAMILIES:
        chosen = [trial for trial in trials if trial["family"] == family]
        if chosen:
            hits = sum(trial["hit"] for trial in chosen)
            rows.append(
                _named(model, arm, trials)
                | {"family": family, "hits": hits, "n": len(chosen), "ci": list(exact_interval(hits, len(chosen)))}
                | {"gate_passed": passed[family]}
            )
    return rows


def _by_depth(model: str, arm: str, trials: Sequence[Trial]) -> list[Row]:
    rows = []
    for depth in sorted({t["depth"] for t in trials if t["depth"] is not None}):
        chosen = [trial for trial in trials if trial["depth"] == depth]
        hits = sum(trial["hit"] for trial in chosen)
        rows.append(
            _named(model, arm, trials)
            | {"context": "all", "depth": depth, "hits": hits, "n": len(chosen)}
            | {"ci": list(exact_interval(hits, len(chosen)))}
        )
    return rows


def _named(model: str, arm: str, trials: Sequence[Trial]) -> Row:
    keys = ("mode", "method", "budget", "quantizer")
    return {"model": model, "arm": arm, **{key: trials[0][key] for key in keys}}


def _gates(model: str, full: Sequence[Trial], no_context: Sequence[Trial]) -> list[Row]:
    """Judge each family, and the suite as a whole: the full cache must master it, and nothing may be guessed."""
    rows = []
    for family in (*FAMILIES, "all"):
        with_context, without = (
            mean(float(t["hit"]) for t in trials if family in ("all", t["family"])) for trials in (full, no_context)
        )
        ids = {"model": model, "study": full[0]["study"], "mode": full[0]["mode"], "family": family}
        ids["context"] = f"{full[0]['context']}, {family.replace('_', ' ')}"
        rows.append(ids | gate(with_context, without, absent="no such task", verb="solve"))
    return rows


def _grid(model: str, arms: Arms) -> Row:
    full = arms[FULL]
    clusters = len({trial["instance"] for trial in full})
    return {
        "model": model,
        "mode": full[0]["mode"],
        "contexts": sorted({trial["context"] for trial in full}),
        "seeds": sorted({trial["instance"] for trial in full}),
        "depths": sorted({trial["depth"] for trial in full if trial["depth"] is not None}),
        "haystacks": sorted({trial["haystack"] for trial in full}),
        "arms": list(arms),
        "n": len(full),
        "n_clusters": clusters,
        "families": {family: sum(t["family"] == family for t in full) for family in FAMILIES},
        "size": "descriptive" if clusters < DESCRIPTIVE_BELOW else "sufficient",
    }
