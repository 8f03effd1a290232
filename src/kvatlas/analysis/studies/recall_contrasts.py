"""Paired contrasts of a needle study: which pairs of arms are compared, on what, and in which family of tests.

The declared primary families are recall of each arm against the full cache, and recall of each arm against
SnapKV at the same budget; Holm is applied within each, per model and question mode. Everything else is
`other`, with Benjamini-Hochberg.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas.analysis.statistics import multiplicity, paired_tests
from kvatlas.analysis.statistics.multiplicity import PRIMARY
from kvatlas.analysis.studies import arm_twins
from kvatlas.analysis.studies.clusters import (
    DEPTH_TREND,
    RECALL_METRICS,
    Cluster,
    Trial,
    cluster_of,
    cluster_values,
    stratum_of,
)
from kvatlas.grid.policy_parameters import FULL

PRIMARY_METRIC = "recall"
ADDITIVE = "additive"
"""The `versus` of an interaction contrast: what eviction and quantization would lose if their losses added up."""

Row = dict[str, Any]


@dataclass(frozen=True, order=True)
class Pair:
    """One wanted contrast: `arm` minus `versus` on `metric`; `mode` None means every question mode."""

    arm: str
    versus: str
    metric: str
    mode: str | None = None


def contrast_rows(
    model: str, mode: str, arms: Mapping[str, Sequence[Trial]], extra: Iterable[Pair], *, gate_passed: bool
) -> list[Row]:
    """Compute every contrast of one model and mode, with `p_holm` in the primary families and `p_bh` in the rest."""
    table = _Values(arms)
    standard = _standard_pairs(arms)
    wanted = dict.fromkeys(
        [
            *standard,
            *(Pair(p.arm, p.versus, p.metric) for p in sorted(extra, key=str) if p.mode in (None, mode)),
        ]
    )
    rows = [row for pair in wanted if (row := _contrast(pair, table, pair in standard)) is not None]
    rows += [row for arm in arms if (row := _interaction(arm, table)) is not None]
    for row in rows:
        row.update(model=model, mode=mode, gate_passed=gate_passed or row["metric"] not in RECALL_METRICS)
    multiplicity.adjust(rows, lambda row: row["family"] == PRIMARY and row["versus"] == FULL)
    return rows


class _Values:
    """Cluster values of every arm and metric, computed once."""

    def __init__(self, arms: Mapping[str, Sequence[Trial]]) -> None:
        self.arms = arms
        self._known: dict[tuple[str, str], dict[Cluster, float] | None] = {}

    def get(self, arm: str, metric: str) -> dict[Cluster, float] | None:
        if (arm, metric) not in self._known:
            self._known[arm, metric] = cluster_values(self.arms[arm], metric) if arm in self.arms else None
        return self._known[arm, metric]

    def pairs(self, arm: str, metric: str, clusters: Sequence[Cluster]) -> int | None:
        """Return the pairs of prompts behind a recall difference (it can be degenerate), None for other metrics."""
        if metric not in RECALL_METRICS:
            return None
        if metric == DEPTH_TREND:
            return len(clusters)
        return sum(cluster_of(trial) in set(clusters) for trial in self.arms[arm])


def _standard_pairs(arms: Mapping[str, Sequence[Trial]]) -> list[Pair]:
    pairs: list[Pair] = []
    for arm, trials in arms.items():
        against = {FULL} & set(arms) - {arm}
        if reference := arm_twins.of_reference(trials[0], arms):
            against.add(reference)
        pairs += [Pair(arm, versus, metric) for versus in sorted(against) for metric in (PRIMARY_METRIC, "ref_nll")]
        pairs.append(Pair(arm, arm, DEPTH_TREND))
    return pairs


def _contrast(pair: Pair, table: _Values, standard: bool) -> Row | None:
    first, second = table.get(pair.arm, pair.metric), table.get(pair.versus, pair.metric)
    if first is None or second is None:
        return None
    # The depth trend is already a difference, within the arm's own clusters.
    within = pair.arm == pair.versus
    # An arm that was run at one context only is compared there.
    clusters = [cluster for cluster in first if cluster in second]
    if not clusters:
        return None
    differences = [first[cluster] - (0.0 if within else second[cluster]) for cluster in clusters]
    primary = standard and pair.metric == PRIMARY_METRIC
    row = _row(differences, clusters, table.pairs(pair.arm, pair.metric, clusters))
    return {
        "arm": pair.arm,
        "versus": pair.versus,
        "metric": pair.metric,
        "family": PRIMARY if primary else "other",
    } | row


def _interaction(arm: str, table: _Values) -> Row | None:
    twins = arm_twins.of_interaction(table.arms[arm][0], table.arms)
    if twins is None:
        return None
    values = [value for name in (arm, *twins) if (value := table.get(name, PRIMARY_METRIC)) is not None]
    clusters = [cluster for cluster in values[0] if all(cluster in value for value in values)]
    if not clusters:
        return None
    differences = paired_tests.interaction(*([value[cluster] for cluster in clusters] for value in values))
    row = _row(differences, clusters, table.pairs(arm, PRIMARY_METRIC, clusters))
    return {"arm": arm, "versus": ADDITIVE, "metric": "recall_interaction", "family": "other"} | row


def _row(differences: Sequence[float], clusters: Sequence[Cluster], prompts: int | None) -> Row:
    strata = [stratum_of(cluster) for cluster in clusters]
    return paired_tests.paired_difference(differences, strata, prompts=prompts).as_row()
