"""Paired contrasts of the task suite: each arm against the full cache, its unquantized twin and random eviction.

Knows the suite's trials and their metrics. The declared primary family is accuracy against the full cache, with Holm's
correction for the difference and for non-inferiority; everything else has Benjamini and Hochberg's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.analysis.statistics import multiplicity, paired_tests
from kvatlas.analysis.statistics.intervals import clusters_to_resolve
from kvatlas.analysis.statistics.multiplicity import ALPHA, PRIMARY
from kvatlas.analysis.studies import arm_twins, streams
from kvatlas.analysis.studies.clusters import mean
from kvatlas.analysis.studies.recall_contrasts import ADDITIVE
from kvatlas.grid.policy_parameters import FULL

FAMILIES = ("needle", "multi_turn", "instruction", "summary")
ACCURACY = "accuracy"
TREND = "accuracy_last_minus_first_depth"
INTERACTION = "accuracy_interaction"
PROTOCOLS = {"single": "single_forward", "prefill": "prefill_then_score", "online": "online"}
METRICS = (
    ACCURACY,
    *(f"accuracy_{family}" for family in FAMILIES),
    TREND,
    INTERACTION,
    *(f"{name}_nll" for name in PROTOCOLS.values()),
)
RANDOM = "random"
MARGIN = 0.05  # points that a non-inferior arm may lose

Trial = Mapping[str, Any]
Row = dict[str, Any]
Arms = dict[str, list[Trial]]


def instance_values(trials: Sequence[Trial], metric: str) -> dict[int, float]:
    """Return a metric's value per instance, in [0, 1] or [-1, 1]; instances without such tasks are left out."""
    by_instance: dict[int, list[Trial]] = {}
    for trial in trials:
        by_instance.setdefault(trial["instance"], []).append(trial)
    values = {instance: _value(members, metric) for instance, members in sorted(by_instance.items())}
    return {instance: value for instance, value in values.items() if value is not None}


def _value(trials: Sequence[Trial], metric: str) -> float | None:
    if metric == TREND:
        depths = sorted({t["depth"] for t in trials if t["depth"] is not None})
        if len(depths) < 2:
            return None
        first, last = (
            mean(float(t["hit"]) for t in trials if t["depth"] == depth) for depth in (depths[0], depths[-1])
        )
        return None if first is None or last is None else last - first
    family = metric.removeprefix(ACCURACY).lstrip("_")
    return mean(float(t["hit"]) for t in trials if family in ("", t["family"]))


def contrast_rows(
    model: str,
    arms: Arms,
    passages: Mapping[tuple[str, str], Trial],
    passed: Mapping[str, bool],
    extra: Sequence[Any],
) -> list[Row]:
    """Return every contrast of one model, adjusted; `passed` says which families (and `all`) are past their gates."""
    wanted: dict[tuple[str, str, str], None] = {}
    for arm, members in arms.items():
        for metric in (ACCURACY, *(f"accuracy_{family}" for family in FAMILIES)):
            wanted |= {(arm, versus, metric): None for versus in _opponents(arm, members[0], arms)}
        wanted[arm, arm, TREND] = None
    for pair in extra:
        if pair.metric in (ACCURACY, TREND) or pair.metric in {f"accuracy_{family}" for family in FAMILIES}:
            wanted[pair.arm, pair.versus, pair.metric] = None
    rows = [_contrast(arms, *key) for key in wanted if key[0] in arms and key[1] in arms]
    rows += [_interaction(arms, arm) for arm in arms]
    rows += [_stream_contrast(passages, arm, protocol) for arm in arms for protocol in PROTOCOLS if arm != FULL]
    contrasts = [row for row in rows if row is not None]
    for row in contrasts:
        family = row["metric"].removeprefix("accuracy_")
        gate = passed.get(family if family in FAMILIES else "needle" if row["metric"] == TREND else "all", True)
        row.update(model=model, mode="suite", gate_passed=gate or row["metric"].endswith("_nll"))
    _adjust(contrasts)
    return contrasts


def _opponents(arm: str, trial: Trial, arms: Arms) -> list[str]:
    """The full cache; the same arm without its quantizer; random eviction at the same budget."""
    opponents = (FULL, arm_twins.unquantized(trial), arm_twins.of_method(trial, RANDOM))
    return [name for name in dict.fromkeys(opponents) if name in arms and name != arm]


def _contrast(arms: Arms, arm: str, versus: str, metric: str) -> Row | None:
    first, second = instance_values(arms[arm], metric), instance_values(arms[versus], metric)
    within = arm == versus
    differences = [value - (0.0 if within else second[instance]) for instance, value in first.items()]
    if not differences:
        return None
    family = metric.removeprefix(ACCURACY).lstrip("_")
    n = len(first) if within else sum(family in ("", trial["family"]) for trial in arms[arm])
    primary = metric == ACCURACY and versus == FULL
    return {"arm": arm, "versus": versus, "metric": metric, "family": PRIMARY if primary else "other"} | _paired(
        differences, n
    )


def _paired(differences: Sequence[float], n: int) -> Row:
    paired = paired_tests.paired_difference(differences, prompts=n)
    return paired.as_row() | {
        "n": n,
        "p_non_inferior": paired_tests.non_inferiority(differences, MARGIN, prompts=n),
        "n_needed": clusters_to_resolve(paired.diff, paired.se * math.sqrt(paired.n_clusters)),
    }


def _interaction(arms: Arms, arm: str) -> Row | None:
    twins = arm_twins.of_interaction(arms[arm][0], arms)
    if twins is None:
        return None
    columns = [list(instance_values(arms[name], ACCURACY).values()) for name in (arm, *twins)]
    differences = paired_tests.interaction(*columns)
    means = dict(zip(("both", "evicted", "quantized", "full"), map(mean, columns), strict=True))
    ids = {"arm": arm, "versus": ADDITIVE, "metric": INTERACTION, "family": "other", "means": means}
    return ids | _paired(differences, len(arms[arm]))


def _stream_contrast(passages: Mapping[tuple[str, str], Trial], arm: str, protocol: str) -> Row | None:
    first, second = passages.get((arm, protocol)), passages.get((FULL, protocol))
    if first is None or second is None:
        return None
    ids = {"arm": arm, "versus": FULL, "metric": f"{PROTOCOLS[protocol]}_nll", "family": "other"}
    return ids | streams.contrast(first, second, "nll", None)


def _adjust(rows: Sequence[Row]) -> None:
    """Adjust the differences, and the non-inferiority of the primary family by Holm; say what is resolved."""
    multiplicity.adjust(rows)
    primary = [row for row in rows if row["family"] == PRIMARY]
    non_inferior = multiplicity.holm([row["p_non_inferior"] for row in primary])
    for row in rows:
        p = row["p_holm"] if row["family"] == PRIMARY else row["p_bh"]
        row.update(p_non_inferior_holm=None, resolved=bool(p <= ALPHA and row["gate_passed"]))
    for row, value in zip(primary, non_inferior, strict=True):
        row["p_non_inferior_holm"] = value
