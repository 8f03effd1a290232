"""Trials of the long-context tasks to their section: a macro average per arm, every task by itself, contrasts, gates.

A pure function of the trials. Scores are in [0, 1]; a cluster is one context draw (task, length, seed), a stratum one task at
one length. The macro average weighs every task that passed its gate equally, and every length of a task equally. Another
schedule than `after_prefill` stands under a mode of its own, `MODE-SCHEDULE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvatlas.analysis.statistics import multiplicity, paired_tests
from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW, recall_interval, stratified_mean
from kvatlas.analysis.statistics.multiplicity import PRIMARY
from kvatlas.analysis.studies import arm_twins
from kvatlas.analysis.studies.clusters import mean
from kvatlas.analysis.studies.recall_contrasts import Pair
from kvatlas.analysis.studies.sizes import MIB, averages, deployed_bytes
from kvatlas.analysis.studies.validity import NO_CONTEXT, gate
from kvatlas.errors import KvatlasError
from kvatlas.grid.arms import BASE
from kvatlas.grid.policy_parameters import FULL
from kvatlas.tasks.ruler import all_tasks

SCORE = "score"
METRICS = (SCORE, *(f"{SCORE}_{task}" for task in all_tasks()))
AFTER_PREFILL = "after_prefill"

Trial = Mapping[str, Any]
Row = dict[str, Any]
Arms = dict[str, list[Trial]]
Cluster = tuple[str, int, int]


def aggregate(trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section {rows, tasks, questions, contrasts, gates, grid}.

    `rows` holds the macro averages, `tasks` a row per task, `questions` the score by question number where several were asked
    of one context. Options: `pairs`, contrasts wanted beyond the standard ones. Raises KvatlasError when there are no
    trials, when a mode lacks the full cache, or when its arms did not see the same prompts.
    """
    if not trials:
        raise KvatlasError("a study's table needs at least one trial; build its cells first")
    section: dict[str, Any] = {key: [] for key in ("rows", "tasks", "questions", "contrasts", "gates")}
    sizes = []
    for (model, mode), arms in _groups(trials).items():
        if mode == NO_CONTEXT:
            continue
        _check(arms, f"model {model}, mode {mode}")
        without = [trial for trial in trials if trial["model"] == model and trial["mode"] == NO_CONTEXT]
        gates = _gates(model, mode, arms[FULL], without)
        passed = [row["task"] for row in gates if row["passed"]]
        section["gates"] += gates
        ids = {"model": model, "mode": mode}
        section["rows"] += [ids | _macro(arm, members, passed) for arm, members in arms.items()]
        for arm, members in arms.items():
            section["tasks"] += [ids | row for row in _tasks(arm, members, passed)]
            section["questions"] += [ids | row for row in _questions(arm, members, passed)]
        pairs = [pair for pair in (options or {}).get("pairs", ()) if pair.mode in (None, mode)]
        section["contrasts"] += [ids | row for row in _contrasts(arms, passed, pairs)]
        sizes.append(ids | _grid(arms))
    section["grid"] = {"rows": sizes, "descriptive": any(row["size"] == "descriptive" for row in sizes)}
    return section


def mode_of(trial: Trial) -> str:
    """Return the question mode, with the schedule where it is not the usual one."""
    mode, schedule = str(trial["mode"]), trial["schedule"]
    return mode if schedule == AFTER_PREFILL else f"{mode}-{schedule}"


def cluster_values(trials: Iterable[Trial], tasks: Sequence[str]) -> dict[Cluster, float]:
    """Return the mean score of every context draw of some tasks, in [0, 1]."""
    scores: dict[Cluster, list[float]] = {}
    for trial in trials:
        if trial["task"] in tasks:
            scores.setdefault((trial["task"], trial["context"], trial["seed"]), []).append(trial["score"])
    return {cluster: sum(values) / len(values) for cluster, values in sorted(scores.items())}


def _groups(trials: Sequence[Trial]) -> dict[tuple[str, str], Arms]:
    groups: dict[tuple[str, str], Arms] = {}
    for trial in sorted(trials, key=lambda t: (t["model"], mode_of(t), *_order(t), t["task"], t["context"], t["id"])):
        groups.setdefault((trial["model"], mode_of(trial)), {}).setdefault(trial["arm"], []).append(trial)
    return groups


def _order(trial: Trial) -> tuple[Any, ...]:
    return trial["arm"] != FULL, trial["method"] != FULL, trial["budget"], trial["method"], trial["arm"]


def _check(arms: Arms, where: str) -> None:
    """Refuse a mode without its control, and arms that lack prompts of a task and length that they have others of."""
    if FULL not in arms:
        raise KvatlasError(f"ruler: {where} has no full cache to compare with; build its cells")
    wanted = {(trial["task"], trial["context"], trial["id"]) for trial in arms[FULL]}
    for arm, members in arms.items():
        seen = {(trial["task"], trial["context"], trial["id"]) for trial in members}
        strata = {prompt[:2] for prompt in seen}
        if seen != {prompt for prompt in wanted if prompt[:2] in strata}:
            raise KvatlasError(
                f"ruler: {where}: arm {arm} did not see the prompts of the full cache; build all its cells"
            )


def _gates(model: str, mode: str, full: Sequence[Trial], without: Sequence[Trial]) -> list[Row]:
    """Judge each task: the full cache must master it, and nothing may be guessed."""
    rows = []
    for task in dict.fromkeys(trial["task"] for trial in full):
        shares = [mean(t["score"] for t in trials if t["task"] == task) for trials in (full, without)]
        contexts = ", ".join(map(str, sorted({t["context"] for t in full if t["task"] == task})))
        ids = {"model": model, "study": full[0]["study"], "mode": mode, "task": task, "context": f"{contexts}, {task}"}
        rows.append(ids | gate(*shares, absent="the full cache was not run", verb="solve"))
    return rows


def _macro(arm: str, trials: Sequence[Trial], passed: Sequence[str]) -> Row:
    """One row over the tasks past their gates, or over all where none is: shown, but in no comparison."""
    present = list(dict.fromkeys(trial["task"] for trial in trials))
    tasks = [task for task in present if task in passed] or present
    members = [trial for trial in trials if trial["task"] in tasks]
    return {"arm": arm, "tasks": tasks, **_row(members), "gate_passed": tasks[0] in passed}


def _tasks(arm: str, trials: Sequence[Trial], passed: Sequence[str]) -> list[Row]:
    return [
        {"arm": arm, "task": task, **_row([t for t in trials if t["task"] == task]), "gate_passed": task in passed}
        for task in dict.fromkeys(trial["task"] for trial in trials)
    ]


def _questions(arm: str, trials: Sequence[Trial], passed: Sequence[str]) -> list[Row]:
    """The score by question number, over the tasks of the macro average."""
    numbers = sorted({trial["question_number"] for trial in trials})
    if len(numbers) < 2:
        return []
    tasks = {trial["task"] for trial in trials}
    members = [trial for trial in trials if trial["task"] in (tasks & set(passed) or tasks)]
    return [
        {
            "arm": arm,
            "question_number": number,
            **_score([t for t in members if t["question_number"] == number]),
            **{key: members[0][key] for key in ("method", "budget", "quantizer")},
            "gate_passed": bool(tasks & set(passed)),
        }
        for number in numbers
    ]


def _score(trials: Sequence[Trial]) -> Row:
    """The mean of context draws, tasks and lengths weighed equally, with an interval that stays inside [0, 1]."""
    values = cluster_values(trials, [trial["task"] for trial in trials])
    strata = [cluster[:2] for cluster in values]
    interval = recall_interval(list(values.values()), len(trials), strata)
    return {
        "n": len(trials),
        "n_clusters": len(values),
        SCORE: stratified_mean(list(values.values()), strata).value,
        f"{SCORE}_ci": list(interval),
        "descriptive": len(values) < DESCRIPTIVE_BELOW,
    }


def _row(trials: Sequence[Trial]) -> Row:
    first, average = trials[0], averages(trials)
    deployed = sum(deployed_bytes(trial, trial["full_slots"]) for trial in trials) / len(trials)
    return {
        **{key: first[key] for key in ("method", "policy", "budget", "quantizer", "schedule")},
        "protection": first.get("protection", BASE),
        "contexts": sorted({trial["context"] for trial in trials}),
        "hits": sum(trial["hit"] for trial in trials),
        **_score(trials),
        "kv_mib": average("resident_bytes") / MIB,
        "peak_mib": average("peak_bytes") / MIB,
        "payload_mib": average("payload_bytes") / MIB,
        "resident_bf16_mib": deployed / MIB,
        "full_bf16_mib": average("full_bf16_bytes") / MIB,
        "byte_ratio": average("full_bf16_bytes") / deployed if deployed else None,
        "actual_ratio": average("full_slots") / average("slots") if average("slots") else None,
        "slots": average("slots"),
        "full_slots": average("full_slots"),
        "needle_retained": mean(trial["needle_retained"] for trial in trials),
        "cells": sorted({trial["cell"] for trial in trials if "cell" in trial}),
    }


def _contrasts(arms: Arms, passed: Sequence[str], extra: Sequence[Pair]) -> list[Row]:
    """Each arm against the full cache and SnapKV at its budget, over all tasks past their gates and task by task.

    The declared primary family is the macro average against the full cache.
    """
    tasks = list(dict.fromkeys(trial["task"] for trial in arms[FULL]))
    wanted: dict[tuple[str, str, str], None] = {}
    for arm, members in arms.items():
        against = [FULL, arm_twins.of_reference(members[0], arms)]
        wanted |= {(arm, other, SCORE): None for other in against if other and other != arm}
        wanted |= {(arm, FULL, f"{SCORE}_{task}"): None for task in tasks if arm != FULL}
    wanted |= {(pair.arm, pair.versus, pair.metric): None for pair in sorted(extra, key=str)}
    rows = []
    for arm, versus, metric in wanted:
        if arm not in arms or versus not in arms:
            continue
        chosen = [metric.removeprefix(f"{SCORE}_")] if metric != SCORE else [t for t in tasks if t in passed] or tasks
        row = _paired(arms[arm], arms[versus], chosen)
        if row is not None:
            family = PRIMARY if (metric, versus) == (SCORE, FULL) else "other"
            gated = {"gate_passed": chosen[0] in passed}
            rows.append({"arm": arm, "versus": versus, "metric": metric, "family": family} | row | gated)
    multiplicity.adjust(rows)
    return rows


def _paired(first: Sequence[Trial], second: Sequence[Trial], tasks: Sequence[str]) -> Row | None:
    """The difference of two arms within the context draws that both have; None without any."""
    ours, theirs = cluster_values(first, tasks), cluster_values(second, tasks)
    clusters = [cluster for cluster in ours if cluster in theirs]
    if not clusters:
        return None
    shared = set(clusters)
    prompts = sum((trial["task"], trial["context"], trial["seed"]) in shared for trial in first)
    differences = [ours[cluster] - theirs[cluster] for cluster in clusters]
    strata = [cluster[:2] for cluster in clusters]
    return paired_tests.paired_difference(differences, strata, prompts=prompts).as_row()


def _grid(arms: Arms) -> Row:
    full = arms[FULL]
    clusters = len(cluster_values(full, [trial["task"] for trial in full]))
    return {
        "tasks": list(dict.fromkeys(trial["task"] for trial in full)),
        "contexts": sorted({trial["context"] for trial in full}),
        "seeds": sorted({trial["seed"] for trial in full}),
        "arms": list(arms),
        "n": len(full),
        "n_clusters": clusters,
        "size": "descriptive" if clusters < DESCRIPTIVE_BELOW else "sufficient",
    }
