"""The aggregates of a synthetic run that has every study, with its claims judged."""

from __future__ import annotations

import math
from typing import Any

from kvatlas.analysis.claims import claim_file, judge
from kvatlas.analysis.studies import attention_loss, needle, online_lm, passkey, quantizer_error, ruler, task_suite
from tests.support import synthetic
from tests.support.places import CLAIMS_FILE
from tests.support.ruler import trials_of as ruler_trials_of
from tests.support.streams import loss_trials, online_trials
from tests.support.suite import error_trial, passage, trials_of

MODEL = "smollm2-135m"
INSTANCES = 30


def results(**needle_grid: Any) -> dict[str, Any]:
    """Make a results.json with all studies of one model; `needle_grid` changes the needle study's trials."""
    claims = claim_file.load(CLAIMS_FILE)
    streams = online_trials(protocols=("online", "prefill", "single"), blocks=(1,))
    pairs = judge.pairs(claims, "online_lm", {trial["arm"] for trial in streams}, online_lm.METRICS)
    results: dict[str, Any] = {
        "schema": 1,
        "run": "synthetic",
        "published": [],
        "studies": {
            "needle": needle.aggregate(synthetic.recall_trials(**needle_grid)),
            "passkey": passkey.aggregate(passkey_trials()),
            "online_lm": online_lm.aggregate(streams, {"pairs": pairs}),
            "attention_loss": attention_loss.aggregate(loss_trials()),
            "ruler": ruler.aggregate(ruler_trials()),
            "task_suite": task_suite.aggregate([trial | {"model": MODEL} for trial in suite_trials()]),
            "quantizer_error": quantizer_error.aggregate([trial | {"model": MODEL} for trial in error_trials()]),
        },
    }
    results["claims"] = judge.evaluate(claims, results)
    return results


def passkey_trials() -> list[dict[str, Any]]:
    """Make passkey trials of a few arms, half of their haystacks noise and half news."""
    trials = synthetic.recall_trials(study="passkey", arms=synthetic.ARMS[:6], contexts=(512,), modes=("aware",))
    return [trial | {"haystack": ("noise", "news")[trial["seed"] % 2]} for trial in trials]


def ruler_trials() -> list[dict[str, Any]]:
    """Make trials of three tasks, one of which the full cache does not master, and of several questions to one cache."""

    def full(task: str, seed: int, number: int) -> float:
        return 0.5 if task == "cwe" else 1.0

    def less(task: str, seed: int, number: int) -> float:
        return 1.0 / number if seed % 2 else 0.25

    trials = ruler_trials_of("full", lambda *_: 0.0, mode="no_context")
    for mode, questions in (("aware", 1), ("agnostic", 1), ("reuse", 4)):
        trials += ruler_trials_of("full", full, mode=mode, questions=questions)
        for arm in ("snapkv-4x", "random-4x", "snapkv-8x"):
            trials += ruler_trials_of(arm, less, mode=mode, questions=questions)
    trials += ruler_trials_of("full", full, schedule="every_block")
    return trials + ruler_trials_of("random-4x", less, schedule="every_block")


def suite_trials() -> list[dict[str, Any]]:
    """Make suite trials in which int8 loses nothing, int2 everything, and a sliding window all but the end."""

    def everything(family: str, depth: int | None, instance: int) -> bool:
        return True

    def nothing(family: str, depth: int | None, instance: int) -> bool:
        return False

    def late(family: str, depth: int | None, instance: int) -> bool:
        return depth in (65, 95) or (family == "summary" and instance % 2 == 0)

    def every_other(family: str, depth: int | None, instance: int) -> bool:
        return instance % 2 == 0

    n = INSTANCES
    trials = [
        *trials_of("full", everything, instances=n),
        *trials_of("full", nothing, instances=n, mode="no_context"),
        *trials_of("full-int8", everything, instances=n, share=0.265625),
        *trials_of("full-kivi4", everything, instances=n, share=0.17),
        *trials_of("full-int2", nothing, instances=n, share=0.078125),
        *trials_of("sliding_window-50pct", late, instances=n, share=0.5),
        *trials_of("sliding_window-50pct-int8", late, instances=n, share=0.13),
        *trials_of("snapkv-50pct", every_other, instances=n, share=0.5),
    ]
    base = [2 + math.sin(step) for step in range(320)]
    for arm, loss in (("full", 0.0), ("sliding_window-50pct", 0.4), ("full-int2", 3.0)):
        for protocol in ("single", "prefill", "online"):
            # A single forward pass sees no eviction, but every quantizer.
            extra = 0.0 if protocol == "single" and arm != "full-int2" else loss
            trials.append(passage(arm, protocol, [value + extra for value in base]))
    return trials


def error_trials() -> list[dict[str, Any]]:
    """Make reconstruction errors of three quantizers, int8 at both granularities."""
    trials = [error_trial("fp16", chunk, [0.001, 0.002]) for chunk in range(3)]
    trials += [error_trial("int8", chunk, [0.1, 0.2 + 0.01 * chunk]) for chunk in range(3)]
    trials += [error_trial("int8", chunk, [0.05, 0.1], granularity="channel", own=False) for chunk in range(3)]
    return trials + [error_trial("kivi4", chunk, [0.5, 0.9]) for chunk in range(3)]
