"""Trials of the long-context tasks with scores as wished."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TASKS = ("niah_single_1", "vt", "cwe")
SLOTS = 512


def trials_of(
    arm: str,
    score: Callable[[str, int, int], float],
    *,
    mode: str = "aware",
    schedule: str = "after_prefill",
    tasks: tuple[str, ...] = TASKS,
    seeds: int = 6,
    questions: int = 1,
) -> list[dict[str, Any]]:
    """Make the trials of an arm; `score` is a function of the task, the seed and the number of the question."""
    method, _, budget = arm.partition("-")
    kept = SLOTS // 4 if budget else SLOTS
    shared = {
        "study": "ruler",
        "model": "smollm2-135m",
        "mode": mode,
        "schedule": schedule,
        "arm": arm,
        "method": method,
        "policy": method,
        "budget": budget or "none",
        "quantizer": "none",
        "protection": "base",
        "context": SLOTS,
        "slots": float(kept),
        "full_slots": SLOTS,
        "resident_bytes": 4096 * kept,
        "payload_bytes": 4096 * kept,
        "peak_bytes": 4096 * SLOTS,
        "full_bf16_bytes": 2048 * SLOTS,
        "tokens_written": SLOTS,
        "needle_retained": kept / SLOTS,
        "cell": f"results/synthetic/cells/ruler/{arm}/{mode}.jsonl",
    }
    return [
        shared
        | {"task": task, "seed": seed, "question_number": number, "id": f"ruler-{task}-s{seed}-q{number}"}
        | {"score": score(task, seed, number), "hit": score(task, seed, number) == 1.0}
        for task in tasks
        for seed in range(seeds)
        for number in range(1, questions + 1)
    ]
