"""Trials of the task suite and of the quantizer error study with chosen outcomes."""

from __future__ import annotations

from typing import Any

CELLS = [("needle", 5), ("needle", 35), ("needle", 65), ("needle", 95), ("multi_turn", None), ("instruction", None)]
CELLS += [("summary", None)]
FULL_BYTES = 100 * 1024


def trials_of(arm: str, hits: Any, *, instances: int = 12, mode: str = "suite", share: float = 1.0) -> list[dict]:
    method, *rest = arm.split("-")
    budget = next((part.replace("pct", "%") for part in rest if part.endswith("pct")), "none")
    quantizer = next((part for part in rest if not part.endswith("pct")), "none")
    rows = []
    for instance in range(instances):
        for family, depth in CELLS:
            rows.append(
                {
                    "study": "task_suite",
                    "model": "tiny",
                    "arm": arm,
                    "method": method,
                    "policy": method,
                    "budget": budget,
                    "quantizer": quantizer,
                    "mode": mode,
                    "schedule": "every_step",
                    "context": 200,
                    "id": f"{family}-{instance}-{depth}",
                    "instance": instance,
                    "family": family,
                    "depth": depth,
                    "haystack": "sentences",
                    "hit": bool(hits(family, depth, instance)),
                    "needle_retained": 1.0,
                    "slots": 200 * (0.5 if budget != "none" else 1),
                    "full_slots": 200,
                    "resident_bytes": int(2 * FULL_BYTES * share),
                    "payload_bytes": int(2 * FULL_BYTES * share),
                    "peak_bytes": int(3 * FULL_BYTES * share),
                    "full_bf16_bytes": FULL_BYTES,
                    "tokens_written": 210,
                    "saturated": 0,
                }
            )
    return rows


def passage(arm: str, protocol: str, nlls: list[float]) -> dict[str, Any]:
    keys = {"study": "task_suite", "model": "tiny", "mode": "suite", "family": "passage", "first_prediction": 0}
    return keys | {"arm": arm, "protocol": protocol, "nlls": nlls, "hits": [True] * len(nlls)}


def error_trial(
    arm: str, chunk: int, errors: list[float], *, granularity: str = "token", own: bool = True
) -> dict[str, Any]:
    signals = [10.0, 30.0]
    return {
        "model": "tiny",
        "arm": arm,
        "quantizer": arm,
        "granularity": granularity,
        "own": own,
        "id": f"text-{chunk}",
        "chunk": chunk,
        "context": 64,
        "head_dim": 64,
        "bits_per_value": {"int8": 8.5, "fp8": 8.0}.get(arm, 4.5),
        "saturated": 1,
        "key_outlier": [2.0, 7.0],
        **{f"{name}_error_l1": errors for name in ("key", "value")},
        **{f"{name}_error_sq": [error**2 for error in errors] for name in ("key", "value")},
        **{f"{name}_signal_l1": signals for name in ("key", "value")},
        **{f"{name}_signal_sq": [signal**2 for signal in signals] for name in ("key", "value")},
    }
