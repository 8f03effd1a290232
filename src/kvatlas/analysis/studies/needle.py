"""Trials of a recall study (needle, passkey) to its section of results.json: rows, depths, contrasts, gates, retention.

A pure function of the trials. The estimand weighs the context x depth grid equally; clusters are haystack
draws.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.analysis.statistics.intervals import (
    DESCRIPTIVE_BELOW,
    exact_interval,
    published_se,
    recall_interval,
    stratified_mean,
)
from kvatlas.analysis.studies.clusters import (
    Trial,
    check_paired,
    cluster_of,
    cluster_values,
    mean,
    stratum_of,
    token_mean,
)
from kvatlas.analysis.studies.recall_contrasts import contrast_rows
from kvatlas.analysis.studies.sizes import MIB, averages, deployed_bytes
from kvatlas.analysis.studies.validity import NO_CONTEXT, gate_rows, grid_row, noise_rows
from kvatlas.errors import KvatlasError
from kvatlas.grid.arms import BASE
from kvatlas.grid.policy_parameters import FULL, NO_QUANTIZER

FULLY_RETAINED = 0.999  # share of the needle's slots kept over layers and KV heads
RETENTION_EDGES = (0.0, 0.25, 0.5, 0.75, FULLY_RETAINED)

Row = dict[str, Any]
Arms = dict[str, list[Trial]]


def aggregate(trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section {rows, by_depth, contrasts, retention, gates, noise_floor, grid} of one recall study.

    Options: `pairs`, contrasts wanted beyond the standard ones (`judge.pairs`); `headline`, models held to
    40 clusters per context. Raises KvatlasError when there are no trials, or when arms of a mode did not
    see the same prompts.
    """
    if not trials:
        raise KvatlasError("a study's table needs at least one trial; build its cells first")
    options = options or {}
    section: dict[str, Any] = {"contrasts": [], "gates": [], **describe(trials)}
    noise: list[Row] = []
    sizes: list[Row] = []
    passed_by: dict[tuple[str, str], bool] = {}
    for (model, mode), arms in _groups(trials).items():
        check_paired(arms, f"model {model}, mode {mode}")
        sizes.append({"model": model, "mode": mode} | grid_row(arms, model in options.get("headline", ())))
        if mode == NO_CONTEXT:
            continue
        no_context = [t for t in trials if t["model"] == model and t["mode"] == NO_CONTEXT]
        gates = gate_rows(model, mode, arms.get(FULL, []), no_context)
        passed = passed_by[model, mode] = gates[-1]["passed"]
        section["gates"] += gates
        section["contrasts"] += contrast_rows(model, mode, arms, options.get("pairs", ()), gate_passed=passed)
        noise += [{"model": model, "mode": mode} | row for row in noise_rows(arms)]
    for row in section["rows"]:
        row["gate_passed"] = passed_by.get((row["model"], row["mode"]))
    tested = [row for row in sizes if row["mode"] != NO_CONTEXT]
    section["noise_floor"] = {"rows": noise} if noise else None
    section["grid"] = {"rows": sizes, "descriptive": any(row["size"] == "descriptive" for row in tested)}
    return section


def describe(trials: Sequence[Trial]) -> dict[str, list[Row]]:
    """Return {rows, by_depth, retention}: every arm by itself, without comparisons."""
    tables: dict[str, list[Row]] = {"rows": [], "by_depth": [], "retention": []}
    for (model, mode), arms in _groups(trials).items():
        for arm, members in arms.items():
            ids = {"model": model, "mode": mode, "arm": arm}
            tables["rows"].append(ids | _row(members, arms.get(FULL)))
            tables["by_depth"] += [ids | row for row in _by_depth(members)]
            tables["retention"] += [ids | row for row in _retention(members)]
    return tables


def _groups(trials: Sequence[Trial]) -> dict[tuple[str, str], Arms]:
    groups: dict[tuple[str, str], Arms] = {}
    order = sorted(
        trials,
        key=lambda t: (t["model"], t["mode"], *_arm_order(t), *cluster_of(t), t["depth"] or 0, t["id"]),
    )
    for trial in order:
        groups.setdefault((trial["model"], trial["mode"]), {}).setdefault(trial["arm"], []).append(trial)
    return groups


def _arm_order(trial: Trial) -> tuple[bool, str, str, bool, str]:
    return (
        trial["method"] != FULL,
        trial["budget"],
        trial["method"],
        trial["quantizer"] != NO_QUANTIZER,
        trial["arm"],
    )


def _row(trials: Sequence[Trial], full: Sequence[Trial] | None) -> Row:
    first = trials[0]
    recalls = cluster_values(trials, "recall") or {}
    strata = [stratum_of(cluster) for cluster in recalls]
    values = list(recalls.values())
    return {
        **{key: first[key] for key in ("method", "policy", "budget", "quantizer")},
        "protection": first.get("protection", BASE),
        "contexts": sorted({trial["context"] for trial in trials}),
        "n": len(trials),
        "n_clusters": len(values),
        "hits": sum(trial["hit"] for trial in trials),
        "recall": stratified_mean(values, strata).value,
        "recall_se_published": published_se(values),
        "recall_ci": list(recall_interval(values, len(trials), strata)),
        "recall_given_full": _recall_given_full(trials, full),
        **_sizes(trials),
        **_fidelity(trials),
        "needle_retained": mean(trial["needle_retained"] for trial in trials),
        "hit_given_retained": _hits([t for t in trials if (t["needle_retained"] or 0.0) >= FULLY_RETAINED]),
        "descriptive": len(values) < DESCRIPTIVE_BELOW,
        "cells": sorted({trial["cell"] for trial in trials}),
    }


def _sizes(trials: Sequence[Trial]) -> Row:
    """Mean sizes per prompt in MiB; `resident_bf16_mib` is of the cache as it is deployed."""
    average = averages(trials)
    resident_bf16 = sum(deployed_bytes(trial, trial["full_slots"]) for trial in trials) / len(trials)
    return {
        "kv_mib": average("resident_bytes") / MIB,
        "resident_bf16_mib": resident_bf16 / MIB,
        "payload_mib": average("payload_bytes") / MIB,
        "peak_mib": average("peak_bytes") / MIB,
        "full_bf16_mib": average("full_bf16_bytes") / MIB,
        "byte_ratio": average("full_bf16_bytes") / resident_bf16 if resident_bf16 else None,
        "actual_ratio": average("full_slots") / average("slots") if average("slots") else None,
        "saved_share": 1 - average("slots") / average("full_slots"),
        "slots": average("slots"),
        "full_slots": average("full_slots"),
    }


def _fidelity(trials: Sequence[Trial]) -> Row:
    nlls = {name: token_mean(trials, f"{name}_nlls") for name in ("ref", "self", "gold")}
    clusters = cluster_values(trials, "ref_nll") or {}
    interval = (
        stratified_mean(list(clusters.values()), [stratum_of(c) for c in clusters]).interval() if clusters else None
    )
    return {
        **{f"{name}_ppl": None if value is None else math.exp(value) for name, value in nlls.items()},
        "ref_ppl_se": published_se([math.exp(value) for value in clusters.values()]),
        "ref_ppl_ci": None if interval is None else [math.exp(bound) for bound in interval],
        "embed_cosine": mean(trial["embed_cosine"] for trial in trials),
        "hidden_cosine": mean(trial["hidden_cosine"] for trial in trials),
        "kl": token_mean(trials, "ref_kls"),
        "top1": token_mean(trials, "ref_top1"),
    }


def _hits(trials: Sequence[Trial]) -> Row:
    hits = sum(trial["hit"] for trial in trials)
    return {"k": hits, "n": len(trials), "ci": list(exact_interval(hits, len(trials))) if trials else None}


def _recall_given_full(trials: Sequence[Trial], full: Sequence[Trial] | None) -> Row:
    answered_by_full = {(*cluster_of(t), t["depth"]) for t in full or () if t["hit"]}
    return _hits([t for t in trials if (*cluster_of(t), t["depth"]) in answered_by_full])


def _by_depth(trials: Sequence[Trial]) -> list[Row]:
    rows = []
    for context in [*sorted({trial["context"] for trial in trials}), "all"]:
        for depth in sorted({trial["depth"] for trial in trials if trial["depth"] is not None}):
            counts = _hits([t for t in trials if t["depth"] == depth and context in ("all", t["context"])])
            rows.append(
                {
                    "context": context,
                    "depth": depth,
                    "hits": counts["k"],
                    "n": counts["n"],
                    "ci": counts["ci"],
                }
            )
    return rows


def _retention(trials: Sequence[Trial]) -> list[Row]:
    """Hits by how much of the needle was kept; bins are (above, up to], the last one holds fully retained needles."""
    known = [trial for trial in trials if trial["needle_retained"] is not None]
    rows = []
    for low, high in zip((-1.0, *RETENTION_EDGES), (*RETENTION_EDGES, 1.0), strict=True):
        inside = [t for t in known if low < t["needle_retained"] <= high]
        if inside:
            counts = _hits(inside)
            retained = mean(t["needle_retained"] for t in inside)
            rows.append(
                {
                    "bin": [max(low, 0.0), high],
                    "retained": retained,
                    "hits": counts["k"],
                    "n": counts["n"],
                    "ci": counts["ci"],
                }
            )
    return rows
