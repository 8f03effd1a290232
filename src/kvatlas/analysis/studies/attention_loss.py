"""Trials of the attention-loss study to its section of results.json: rows, maps of layer x head, contrasts.

A pure function of the trials. ALR here is always divided by the number of slots; prompts are the clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvatlas.analysis.statistics import paired_tests
from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW, stratified_mean
from kvatlas.errors import KvatlasError

Trial = Mapping[str, Any]
Row = dict[str, Any]
Array = NDArray[np.float64]

RANKED_BY_NORM = "l2norm"
BANDS = {"layers_0_1": (0, 1), "layers_19_21_29": (19, 20, 21, 29)}
"""Names of groups of layers -> the layers; each is compared with all other layers of the model."""

FIELDS = ("alr", "alr_kv", "random_alr", "random_alr_kv")


def aggregate(trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section {rows, maps, contrasts} of the attention-loss study.

    rows: one per (model, arm), means over layers and heads with t intervals over prompts. maps: the same by layer and
    head, with the standard deviations over prompts and over queries. contrasts: arm against arm, and for ranking by L2
    norm the `BANDS` of layers against the others. Raises KvatlasError without trials, or when arms saw other prompts.
    """
    if not trials:
        raise KvatlasError("attention_loss: its table needs at least one trial; build its cells first")
    section: dict[str, Any] = {"rows": [], "maps": [], "contrasts": []}
    for model in sorted({trial["model"] for trial in trials}):
        arms: dict[str, list[Trial]] = {}
        for trial in sorted(trials, key=lambda t: (t["arm"], t["prompt"])):
            if trial["model"] == model:
                arms.setdefault(trial["arm"], []).append(trial)
        if len({tuple(t["id"] for t in members) for members in arms.values()}) > 1:
            raise KvatlasError(f"attention_loss: arms of model {model} saw different prompts; build all cells again")
        section["rows"] += [_row(members) for members in arms.values()]
        section["maps"] += [_map(members) for members in arms.values()]
        section["contrasts"] += _contrasts(model, arms)
    return section


def stacked(trials: Sequence[Trial], name: str) -> Array:
    """Return a field of all prompts, `[prompts, layers, heads]`."""
    return np.asarray([trial[name] for trial in trials], dtype=float)


def _ids(trials: Sequence[Trial]) -> Row:
    return {key: trials[0][key] for key in ("model", "arm", "method", "policy", "text", "context", "queries")}


def _row(trials: Sequence[Trial]) -> Row:
    row = _ids(trials) | {"n": len(trials) * trials[0]["queries"], "n_clusters": len(trials)}
    means = {name: stacked(trials, name).mean(axis=(1, 2)) for name in FIELDS}
    for name, values in means.items():
        estimate = stratified_mean(values.tolist())
        interval = estimate.interval()
        row |= {name: estimate.value, f"{name}_ci": None if interval is None else list(interval)}
    row["relative"] = row["alr"] / row["random_alr"]
    row["relative_kv"] = row["alr_kv"] / row["random_alr_kv"]
    return row | {"descriptive": len(trials) < DESCRIPTIVE_BELOW}


def _map(trials: Sequence[Trial]) -> Row:
    """Means and spreads by layer and head, `[layers][heads]`."""
    row = _ids(trials)
    for name in FIELDS:
        row[name] = stacked(trials, name).mean(axis=0).tolist()
    many = len(trials) > 1
    for name in ("alr", "alr_kv"):
        row[f"{name}_sd_prompts"] = stacked(trials, name).std(axis=0, ddof=1).tolist() if many else None
    row["alr_sd_queries"] = stacked(trials, "alr_sd").mean(axis=0).tolist()
    return row


def _contrasts(model: str, arms: Mapping[str, Sequence[Trial]]) -> list[Row]:
    means = {arm: stacked(members, "alr").mean(axis=2) for arm, members in arms.items()}
    rows = []
    for arm, versus in combinations(means, 2):
        rows.append(_contrast(model, arm, versus, "alr", (means[arm] - means[versus]).mean(axis=1)))
    ranked = [members for members in arms.values() if members[0]["method"] == RANKED_BY_NORM]
    for members in ranked[:1]:
        for metric in ("alr", "alr_kv"):
            rows += _band_contrasts(model, metric, stacked(members, metric).mean(axis=2))
    return rows


def _band_contrasts(model: str, metric: str, by_layer: Array) -> list[Row]:
    """Compare each band of layers that the model has with its other layers; `by_layer`: `[prompts, layers]`."""
    n_layers = by_layer.shape[1]
    rows = []
    for name, layers in BANDS.items():
        others = [layer for layer in range(n_layers) if layer not in layers]
        if max(layers) < n_layers and others:
            gaps = by_layer[:, list(layers)].mean(axis=1) - by_layer[:, others].mean(axis=1)
            rows.append(_contrast(model, name, "other_layers", metric, gaps))
    return rows


def _contrast(model: str, arm: str, versus: str, metric: str, gaps: Array) -> Row:
    ids = {"model": model, "arm": arm, "versus": versus, "metric": metric}
    return ids | paired_tests.paired_difference(gaps.tolist()).as_row()
