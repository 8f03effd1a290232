"""Trials of the online study to its section of results.json: rows, contrasts, curves, protocols, block sizes.

A pure function of the trials. Every arm of a run reads the same stream, so all comparisons are paired, prediction by
prediction. The primary question: does any selector beat keeping sinks and the most recent tokens at the same budget?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvatlas.analysis.statistics import multiplicity, paired_tests
from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW
from kvatlas.analysis.statistics.multiplicity import ALPHA, PRIMARY
from kvatlas.analysis.studies import arm_twins, streams
from kvatlas.analysis.studies.sizes import MIB, deployed_bytes
from kvatlas.analysis.studies.streams import Row, Trial
from kvatlas.errors import KvatlasError
from kvatlas.grid.policy_parameters import FULL

ONLINE = "online"
METRICS = tuple(streams.FIELDS)

_COPIED = (
    "model",
    "arm",
    "method",
    "policy",
    "budget",
    "quantizer",
    "protection",
    "protocol",
    "block",
    "text",
    "tokens",
)
_PROTECTED = ("n_sinks", "n_recent", "skip_layers", "reindexed", "slots", "peak_slots")
Arms = dict[str, Trial]


def aggregate(trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section {rows, contrasts, curves, protocols, blocks, checks} of the online study.

    `rows`, `contrasts` and `curves` are of protocol `online` at the study's block size; `protocols` holds every protocol
    and `blocks` the other block sizes. Options: `pairs`, contrasts wanted beyond the standard ones. Raises KvatlasError
    when there are no trials, or when arms did not read the same stream.
    """
    if not trials:
        raise KvatlasError("online_lm: its table needs at least one trial; build its cells first")
    section: dict[str, Any] = {name: [] for name in ("rows", "contrasts", "curves", "protocols", "blocks", "checks")}
    groups = _groups(trials)
    for (model, protocol, block), arms in groups.items():
        usual = _usual_block(trials, model)
        if protocol != ONLINE or block == usual:
            section["protocols"] += [_protocol_row(trial, arms) for trial in arms.values()]
        if protocol != ONLINE:
            continue
        rows = [_row(trial, arms) for trial in arms.values()]
        if block != usual:
            section["blocks"] += rows
            continue
        section["rows"] += rows
        section["contrasts"] += _contrasts(model, arms, (options or {}).get("pairs", ()))
        section["curves"] += [{"model": model, "arm": arm, **streams.curve(trial)} for arm, trial in arms.items()]
        section["checks"].append({"model": model, **_check(arms)})
    return section


def _groups(trials: Sequence[Trial]) -> dict[tuple[str, str, int], Arms]:
    groups: dict[tuple[str, str, int], Arms] = {}
    for trial in sorted(trials, key=lambda t: (t["model"], t["protocol"], t["block"], t["method"] != FULL, t["arm"])):
        arms = groups.setdefault((trial["model"], trial["protocol"], trial["block"]), {})
        if trial["arm"] in arms:
            raise KvatlasError(f"online_lm: arm {trial['arm']} has two trials of one stream; delete the older cell")
        arms[trial["arm"]] = trial
    for (model, protocol, _), arms in groups.items():
        streams_read = {(t["text"], t["tokens"], t["first_prediction"], len(t["nlls"])) for t in arms.values()}
        if len(streams_read) > 1:
            raise KvatlasError(f"online_lm: arms of model {model}, protocol {protocol} read different streams")
        if FULL not in arms:
            raise KvatlasError(f"online_lm: model {model}, protocol {protocol} has no full cache to compare with")
    return groups


def _usual_block(trials: Sequence[Trial], model: str) -> int:
    """The block size of most arms."""
    counts = Counter(t["block"] for t in trials if t["model"] == model and t["protocol"] == ONLINE)
    return max(counts, key=lambda block: (counts[block], block), default=0)


def _row(trial: Trial, arms: Arms) -> Row:
    row: Row = {key: trial[key] for key in (*_COPIED, *_PROTECTED)}
    n = len(trial["nlls"])
    row |= {
        "passages": trial.get("passages", 1),
        "n": n,
        "n_clusters": math.ceil(n / paired_tests.BLOCK_TOKENS),
        "post_from": trial["first_compressed"],
    }
    for metric in METRICS:
        series = streams.values(trial, metric, streams.start_of(trial, metric))
        bound = metric.startswith("post_") and trial["first_compressed"] is None
        row |= _level(metric, [] if bound else series)
    row |= _against("full", trial, arms[FULL], n)
    row |= _against("baseline", trial, arm_twins.baseline_of(trial, arms), n)
    return row | _sizes(trial) | {"descriptive": row["n_clusters"] < DESCRIPTIVE_BELOW}


def _level(metric: str, series: Sequence[float]) -> Row:
    """A mean and its interval; NLLs as perplexities too, under the names `ppl` and `post_ppl`."""
    if not series:
        mean, ci = None, None
    else:
        mean, ci = streams.mean_interval(series)
    level: Row = {metric: mean, f"{metric}_ci": ci}
    if metric.endswith("nll"):
        name = metric.replace("nll", "ppl")
        level[name] = None if mean is None else math.exp(mean)
        level[f"{name}_ci"] = None if ci is None else [math.exp(bound) for bound in ci]
    return level


def _against(name: str, trial: Trial, other: Trial | None, n: int) -> Row:
    """Perplexity ratios and accuracy difference to another arm over all predictions, and after the budget binds."""
    blank = {f"{stem}_{name}{end}": None for stem in ("ratio", "post_ratio", "accuracy_gain") for end in ("", "_ci")}
    if other is None or other["arm"] == trial["arm"]:
        return blank
    whole = streams.ratio(streams.contrast(trial, other, "nll", None))
    against = {f"ratio_{name}": whole["ratio"], f"ratio_{name}_ci": whole["ci"]}
    start = trial["first_compressed"]
    if start is not None and start < trial["first_prediction"] + n // trial.get("passages", 1):
        post = streams.ratio(streams.contrast(trial, other, "post_nll", start))
        gain = streams.contrast(trial, other, "post_accuracy", start)
        against |= {f"post_ratio_{name}": post["ratio"], f"post_ratio_{name}_ci": post["ci"]}
        against |= {f"accuracy_gain_{name}": gain["diff"], f"accuracy_gain_{name}_ci": gain["ci"]}
    return blank | against


def _sizes(trial: Trial) -> Row:
    """Sizes in MiB; `resident_bf16_mib` is of the cache as it is deployed."""
    return {
        "kv_mib": trial["resident_bytes"] / MIB,
        "payload_mib": trial["payload_bytes"] / MIB,
        "peak_mib": trial["peak_bytes"] / MIB,
        "resident_bf16_mib": deployed_bytes(trial, trial["tokens"]) / MIB,
        "full_bf16_mib": trial["full_bf16_bytes"] / MIB,
        "actual_ratio": trial["tokens"] / trial["slots"],
        "saved_share": 1 - trial["slots"] / trial["tokens"],
    }


def _contrasts(model: str, arms: Arms, extra: Iterable[Any]) -> list[Row]:
    """Each arm against the full cache and against sink + recent on every metric, and the pairs that claims want."""
    primary: set[Any] = set()
    wanted: dict[Any, Any] = {}
    for arm, trial in arms.items():
        baseline = arm_twins.baseline_of(trial, arms)
        others = [] if arm == FULL else [FULL]
        if baseline is not None and baseline["arm"] != arm:
            others.append(baseline["arm"])
            primary.add((arm, baseline["arm"], "post_nll"))
        wanted |= dict.fromkeys((arm, other, metric) for other in others for metric in METRICS)
    wanted |= dict.fromkeys(
        (pair.arm, pair.versus, pair.metric)
        for pair in sorted(extra, key=str)
        if pair.arm in arms and pair.versus in arms
    )
    rows = [
        {"model": model, "arm": arm, "versus": versus, "metric": metric}
        | {"family": PRIMARY if (arm, versus, metric) in primary else "other"}
        | streams.contrast(arms[arm], arms[versus], metric, start)
        for arm, versus, metric in wanted
        if (start := _shared_start(arms[arm], arms[versus], metric)) is not None or not metric.startswith("post_")
    ]
    return _adjusted(rows)


def _shared_start(arm: Trial, versus: Trial, metric: str) -> int | None:
    starts = [start for t in (arm, versus) if (start := streams.start_of(t, metric)) is not None]
    return min(starts, default=None)


def _adjusted(rows: list[Row]) -> list[Row]:
    """Add adjusted p-values and a verdict to each row."""
    multiplicity.adjust(rows)
    for row in rows:
        row["verdict"] = _verdict(row, row["p_holm"] if row["family"] == PRIMARY else row["p_bh"])
    return rows


def _verdict(row: Row, p: float) -> str:
    """`better` or `worse` where corrected p and interval agree; a lower NLL and a higher accuracy are better."""
    if row["ci"] is None or p > ALPHA or row["ci"][0] <= 0 <= row["ci"][1]:
        return "not resolved"
    return "better" if (row["diff"] < 0) == row["metric"].endswith("nll") else "worse"


def _protocol_row(trial: Trial, arms: Arms) -> Row:
    """One protocol's view of an arm: its perplexity over that of the full cache where the protocol could see a loss."""
    start = trial["first_compressed"]
    series = streams.values(trial, "nll", start)
    over_full = streams.ratio(streams.contrast(trial, arms[FULL], "nll", start))
    row = {key: trial[key] for key in _COPIED} | {"n": len(series), "from": start}
    return row | {
        "ppl": math.exp(streams.mean_interval(series)[0]),
        "ratio": over_full["ratio"],
        "ratio_ci": over_full["ci"],
    }


def _check(arms: Arms) -> Row:
    """Whether every arm predicts exactly as the full cache does until its budget binds."""
    full = streams.passages(arms[FULL], "nlls")
    differing = [
        arm
        for arm, trial in arms.items()
        for nlls, full_nlls in zip(streams.passages(trial, "nlls"), full, strict=True)
        if nlls[: trial["first_compressed"]] != full_nlls[: trial["first_compressed"]]
    ]
    return {"identical_before_binding": not differing, "differing_arms": sorted(set(differing))}
