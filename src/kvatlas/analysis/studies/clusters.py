"""Trials to cluster values: one number per haystack draw for each metric of a needle study.

A cluster is one haystack draw (haystack, context, seed); inside it are the depths. Its stratum is
(haystack, context). Knows the trial schema; knows no tests and no claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from kvatlas.errors import KvatlasError

Trial = Mapping[str, Any]
Cluster = tuple[str, int, int]
DEPTH_TREND = "recall_last_minus_first_depth"
RECALL_METRICS = ("recall", DEPTH_TREND, "recall_interaction")


def cluster_of(trial: Trial) -> Cluster:
    """Return the haystack draw that a trial belongs to."""
    return trial["haystack"], trial["context"], trial["seed"]


def stratum_of(cluster: Cluster) -> tuple[str, int]:
    """Return the (haystack, context) within which clusters vary at random."""
    return cluster[:2]


def by_cluster(trials: Iterable[Trial]) -> dict[Cluster, list[Trial]]:
    """Group trials by their haystack draw, in sorted order."""
    groups: dict[Cluster, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(cluster_of(trial), []).append(trial)
    return dict(sorted(groups.items()))


def cluster_values(trials: Iterable[Trial], metric: str) -> dict[Cluster, float] | None:
    """Return the metric's value per cluster, or None where a cluster has none (no embeddings, no reference tokens).

    recall is in [0, 1]; NLLs in nats per token (all tokens of the cluster count the same); cosines as they
    are. `DEPTH_TREND` is the recall at the deepest depth minus that at the shallowest.
    """
    if metric not in METRICS:
        raise KvatlasError(f"claims: metric {metric!r} is not one of {', '.join(sorted(METRICS))}")
    values: dict[Cluster, float] = {}
    for cluster, members in by_cluster(trials).items():
        value = METRICS[metric](members)
        if value is None:
            return None
        values[cluster] = value
    return values


def check_paired(arms: Mapping[str, Sequence[Trial]], where: str) -> None:
    """Refuse arms that did not see the same prompts of a stratum: every comparison of the study is paired.

    An arm may leave out whole strata (a variant that is run at one context only). Raises KvatlasError naming the arm
    with prompts missing.
    """
    prompts = {arm: {(cluster_of(trial), trial["depth"]) for trial in trials} for arm, trials in arms.items()}
    everything: set[tuple[Cluster, Any]] = set().union(*prompts.values()) if prompts else set()
    for arm, seen in prompts.items():
        strata = {stratum_of(cluster) for cluster, _ in seen}
        owed = {prompt for prompt in everything if stratum_of(prompt[0]) in strata}
        if seen != owed:
            raise KvatlasError(
                f"{where}: arm {arm} lacks {len(owed - seen)} of {len(owed)} prompts that "
                "other arms have; build all cells of the study before its table"
            )


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean, or None where there is no value or one is missing."""
    array = list(values)
    if not array or any(value is None for value in array):
        return None
    return float(np.mean(np.asarray(array, dtype=float)))


def token_mean(trials: Iterable[Trial], field: str) -> float | None:
    """Return the mean of a per-token list over all tokens of these trials, or None without tokens."""
    return mean(value for trial in trials for value in trial[field])


def _depth_trend(trials: Sequence[Trial]) -> float | None:
    depths = [trial["depth"] for trial in trials if trial["depth"] is not None]
    if len(set(depths)) < 2:
        return None
    ends = [mean(float(t["hit"]) for t in trials if t["depth"] == edge) for edge in (max(depths), min(depths))]
    return None if ends[0] is None or ends[1] is None else ends[0] - ends[1]


def _tokens(field: str) -> Callable[[Sequence[Trial]], float | None]:
    return lambda trials: token_mean(trials, field)


def _field(name: str) -> Callable[[Sequence[Trial]], float | None]:
    return lambda trials: mean(trial[name] for trial in trials)


METRICS: dict[str, Callable[[Sequence[Trial]], float | None]] = {
    "recall": _field("hit"),
    DEPTH_TREND: _depth_trend,
    "ref_nll": _tokens("ref_nlls"),
    "self_nll": _tokens("self_nlls"),
    "gold_nll": _tokens("gold_nlls"),
    "ref_kl": _tokens("ref_kls"),
    "ref_top1": _tokens("ref_top1"),
    "embed_cosine": _field("embed_cosine"),
    "hidden_cosine": _field("hidden_cosine"),
}
"""Metric -> its value over one cluster's trials."""
