"""What a recall study may conclude: task gates, noise floor, and whether the sample is large enough.

Knows the trial schema; knows no statistics beyond counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW, exact_interval
from kvatlas.analysis.studies.clusters import Trial, by_cluster, mean, stratum_of, token_mean
from kvatlas.grid.arms import Arm
from kvatlas.grid.policy_parameters import FULL

NO_CONTEXT = "no_context"
GATE_FULL = 0.8  # the full cache must recall more than this ...
GATE_NO_CONTEXT = 0.1  # ... and the model without the context less than this, before arms are compared
MINIMUM_PER_CONTEXT = {"headline": 40, "other": 20}

Row = dict[str, Any]
Arms = Mapping[str, Sequence[Trial]]


def gate(full: float | None, no_context: float | None, *, absent: str, verb: str) -> Row:
    """Judge a task by the shares that are answered with and without the context; None where nothing was run.

    `absent` says why there is no share with the context, `verb` ("recall") what is done with a task.
    """
    reasons = []
    if full is None or full <= GATE_FULL:
        reasons.append(absent if full is None else f"the full cache {verb}s {full:.1%}")
    if no_context is None or no_context >= GATE_NO_CONTEXT:
        reasons.append(
            "the question without its context was not run"
            if no_context is None
            else f"{no_context:.1%} are {verb.removesuffix('e')}ed without the context"
        )
    shares = {"full_recall": full, "no_context_recall": no_context}
    return shares | {"passed": not reasons, "reason": "; ".join(reasons)}


def gate_rows(model: str, mode: str, full: Sequence[Trial], no_context: Sequence[Trial]) -> list[Row]:
    """Judge each context and then, last, all contexts together."""
    rows = []
    for context in [*sorted({trial["context"] for trial in full}), "all"]:
        here = [t for t in full if context in ("all", t["context"])]
        # A run may store a prompt without its context once for all context lengths.
        without = [t for t in no_context if context in ("all", t["context"])] or list(no_context)
        ids = {"model": model, "study": full[0]["study"] if full else None, "mode": mode, "context": context}
        shares = mean(t["hit"] for t in here), mean(t["hit"] for t in without)
        rows.append(ids | gate(*shares, absent="the full cache was not run", verb="recall"))
    return rows


def is_repeat(row: Mapping[str, Any]) -> bool:
    """Return whether a trial or row is of a repeat of the full cache: the same cache, run again under another arm id."""
    arm = Arm.of(row)
    return arm.id == FULL and row["arm"] != FULL


def noise_rows(arms: Arms) -> list[Row]:
    """Compare every repeat of the full cache with the full cache."""
    rows = []
    full = {trial["id"]: trial for trial in arms.get(FULL, [])}
    for arm, trials in arms.items():
        if not is_repeat(trials[0]):
            continue
        flips = sum(trial["hit"] != full[trial["id"]]["hit"] for trial in trials)
        outputs = sum(trial["output_ids"] != full[trial["id"]]["output_ids"] for trial in trials)
        gaps = [abs(a - b) for t in trials for a, b in zip(t["ref_nlls"], full[t["id"]]["ref_nlls"], strict=True)]
        rows.append(
            {
                "arm": arm,
                "n": len(trials),
                "flips": flips,
                "flips_ci": list(exact_interval(flips, len(trials))),
                "outputs_changed": outputs,
                "kl": token_mean(trials, "ref_kls"),
                "ref_nll_gap_max": max(gaps, default=None),
                "ref_ppl_ratio": _ppl_ratio(trials, [full[trial["id"]] for trial in trials]),
            }
        )
    return rows


def _ppl_ratio(trials: Sequence[Trial], full: Sequence[Trial]) -> float | None:
    first, second = token_mean(trials, "ref_nlls"), token_mean(full, "ref_nlls")
    return None if first is None or second is None else math.exp(first - second)


def grid_row(arms: Arms, headline: bool) -> Row:
    """Return what one model and mode covered, and whether that is enough clusters to infer from."""
    trials = arms[FULL] if FULL in arms else next(iter(arms.values()))
    clusters = list(by_cluster(trials))
    strata = [stratum_of(cluster) for cluster in clusters]
    per_context = min(strata.count(stratum) for stratum in set(strata))
    minimum = MINIMUM_PER_CONTEXT["headline" if headline else "other"]
    size = "sufficient" if per_context >= minimum else "below minimum"
    return {
        "contexts": sorted({trial["context"] for trial in trials}),
        "seeds": sorted({trial["seed"] for trial in trials}),
        "depths": sorted({trial["depth"] for trial in trials if trial["depth"] is not None}),
        "haystacks": sorted({trial["haystack"] for trial in trials}),
        "arms": list(arms),
        "n": len(trials),
        "n_clusters": len(clusters),
        "clusters_per_context": per_context,
        "minimum_per_context": minimum,
        "size": "descriptive" if len(clusters) < DESCRIPTIVE_BELOW else size,
    }
