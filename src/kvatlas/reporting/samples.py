"""Generations side by side: a few prompts of a run, each with the output of every arm.

Knows trials; must not know Markdown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvatlas.reporting import labels, tables
from kvatlas.reporting.study_rows import Record


def chosen(trials: Sequence[Record]) -> list[dict[str, Any]]:
    """Choose prompts to show side by side: per model, mode and context the first seed, at a middle and at the first
    depth.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for trial in trials:
        if trial.get("mode") != "no_context" and trial.get("output") is not None and trial.get("depth") is not None:
            key = (trial["study"], trial["model"], trial["mode"], trial["context"])
            groups.setdefault(key, []).append(trial)
    shown = []
    first = {key[:3]: min(k[3] for k in groups if k[:3] == key[:3]) for key in groups}
    for key in sorted(groups):
        seed = min(trial["seed"] for trial in groups[key])
        depths = sorted({trial["depth"] for trial in groups[key] if trial["seed"] == seed})
        wanted = [depths[len(depths) // 2], *([depths[0]] if key[3] == first[key[:3]] else [])]
        for depth in dict.fromkeys(wanted):
            same = [t for t in groups[key] if t["seed"] == seed and t["depth"] == depth]
            shown.append(_sample(key, seed, depth, same))
    return shown


def _sample(key: tuple[Any, ...], seed: int, depth: float, trials: Sequence[Record]) -> dict[str, Any]:
    study, model, mode, context = key
    full = next((trial for trial in trials if trial["arm"] == "full"), None)
    arms = [
        {
            "method": tables.named(trial)[0],
            "ratio": tables.named(trial)[1],
            "hit": "yes" if trial["hit"] else "no",
            "kept": labels.percent(trial.get("needle_retained")),
            "output": str(trial["output"]),
        }
        for trial in sorted(trials, key=labels.arm_key)
    ]
    return {
        "name": f"{labels.model_label(model)}, {study}, {labels.mode_label(mode)}, {context} tokens",
        "id": str(trials[0].get("id") or ""),
        "seed": seed,
        "depth": f"{depth:g}%",
        "answer": str(trials[0].get("answer") or labels.DASH),
        "full": None if full is None else str(full["output"]),
        "arms": arms,
    }
