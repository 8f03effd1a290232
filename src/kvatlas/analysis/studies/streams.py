"""Paired comparison of two arms on one token stream: differences per prediction, in blocks of neighbouring tokens.

Losses of neighbouring tokens depend on each other, so blocks of 64 tokens are the clusters: intervals come from the
paired circular block bootstrap, p-values from sign flips of whole blocks. They are about this stream, and say nothing of
other texts. Knows the trials of an online study; knows no tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from kvatlas.analysis.statistics import paired_tests

Trial = Mapping[str, Any]
Row = dict[str, Any]

FIELDS = {"nll": "nlls", "post_nll": "nlls", "accuracy": "hits", "post_accuracy": "hits"}
"""Metric -> the trial's field. `post_` counts from the first prediction that a smaller cache made."""


def passages(trial: Trial, field: str) -> list[list[float]]:
    """Return a field's values per prediction, passage by passage; passages are streams of equal length."""
    series = trial[field]
    length = len(series) // trial.get("passages", 1)
    return [[float(value) for value in series[begin : begin + length]] for begin in range(0, len(series), length)]


def values(trial: Trial, metric: str, start: int | None = None) -> list[float]:
    """Return a metric's values per prediction (nats, or 0 and 1), from prediction `start` of each passage on."""
    begin = 0 if start is None else max(0, start - trial["first_prediction"])
    return [value for passage in passages(trial, FIELDS[metric]) for value in passage[begin:]]


def start_of(trial: Trial, metric: str) -> int | None:
    """Return the prediction that the metric counts from: None for all of them."""
    start: int | None = trial["first_compressed"] if metric.startswith("post_") else None
    return start


def mean_interval(series: ArrayLike) -> tuple[float, list[float] | None]:
    """Return the mean of one arm's values and its block bootstrap interval."""
    array = np.asarray(series, dtype=float)
    return _logged(paired_tests.perplexity_ratio([array], [np.zeros_like(array)]))


def contrast(arm: Trial, versus: Trial, metric: str, start: int | None) -> Row:
    """Return {diff, ci, p, test, n, n_clusters}: mean of arm minus versus over the same predictions."""
    first, second = (np.asarray(values(trial, metric, start)) for trial in (arm, versus))
    difference, ci = _logged(paired_tests.perplexity_ratio([first], [second]))
    gaps = first - second
    n_clusters = max(1, math.ceil(gaps.size / paired_tests.BLOCK_TOKENS))
    p, test = paired_tests.sign_flip([float(part.sum()) for part in np.array_split(gaps, n_clusters)])
    return {
        "diff": difference,
        "ci": ci,
        "p": p,
        "test": f"{test}, blocks of {paired_tests.BLOCK_TOKENS} tokens",
        "n": int(gaps.size),
        "n_clusters": n_clusters,
    }


def ratio(row: Row) -> Row:
    """Return {ratio, ci} of a contrast of NLLs: how many times the perplexity of `versus` the arm's is."""
    return {
        "ratio": math.exp(row["diff"]),
        "ci": None if row["ci"] is None else [math.exp(bound) for bound in row["ci"]],
    }


def curve(trial: Trial, points: int = 64, windows: int = 4) -> Row:
    """Return {tokens, cumulative, windowed, accuracy} at up to `points` places of the stream, passages averaged.

    `tokens` are predictions made so far. `cumulative` is the mean NLL of all of them (log-PPL, nats), `windowed` that of
    the last `windows` steps between places, `accuracy` the share of all of them that are the likeliest token.
    """
    means = (np.mean(passages(trial, name), axis=0) for name in ("nlls", "hits"))
    nlls, hits = (np.concatenate([[0.0], np.cumsum(mean)]) for mean in means)
    n = nlls.size - 1
    step = max(trial["block"], math.ceil(n / points))
    steps = np.unique([*range(step, n + 1, step), n])
    since = np.maximum(0, steps - windows * step)
    return {
        "tokens": (steps + trial["first_prediction"]).tolist(),
        "window": int(windows * step),
        "cumulative": _rounded(nlls[steps] / steps),
        "windowed": _rounded((nlls[steps] - nlls[since]) / (steps - since)),
        "accuracy": _rounded(hits[steps] / steps),
    }


def _logged(ratio_and_interval: tuple[float, tuple[float, float] | None]) -> tuple[float, list[float] | None]:
    value, ci = ratio_and_interval
    return math.log(value), None if ci is None else [math.log(bound) for bound in ci]


def _rounded(array: Any) -> list[float]:
    return [round(float(value), 5) for value in array]
