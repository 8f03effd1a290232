"""Seeded synthetic recall trials with the clustering of real ones, for tests of the analysis and the pages.

Hits come from a threshold on (arm strength + haystack effect + needle effect + depth effect + noise):
haystack and needle effects are shared by all arms, so trials are paired and clustered as in a run. It knows
no model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.places import CLAIMS_FILE

VALUES_PER_TOKEN = 11_520  # keys and values of one token, as in a 30-layer model with 3 KV heads of 64
FULL_STRENGTH = 2.4


@dataclass(frozen=True)
class Arm:
    """One synthetic arm: how strongly it answers (in sd), how far its reference NLL lies over the full cache's."""

    method: str
    budget: str
    strength: float
    excess_nll: float
    quantizer: str = "none"
    bits: float = 32.0
    late_only: bool = False

    @property
    def name(self) -> str:
        """Arm id as used in paths."""
        if self.method == "full":
            return "full" if self.quantizer == "none" else f"full-{self.quantizer}"
        label = self.budget.replace("%", "pct")
        label = f"{label}slots" if label.isdigit() else label
        return "-".join([self.method, label, *([self.quantizer] if self.quantizer != "none" else [])])


FULL = Arm("full", "none", FULL_STRENGTH, 0.0)
ARMS: tuple[Arm, ...] = (
    FULL,
    Arm("full", "none", 2.3, 0.001, "int8", 8.5),
    Arm("full", "none", 1.7, 0.06, "int4", 4.5),
    *(
        Arm(
            method,
            budget,
            strength - (1.1 if budget == "8x" else 0.0),
            excess * (1.5 if budget == "8x" else 1.0),
            late_only=late,
        )
        for budget in ("4x", "8x")
        for method, strength, excess, late in (
            ("naive_drop", -3.0, 1.0, False),
            ("random", -2.6, 1.1, False),
            ("streaming_llm", 1.6, 1.3, True),
            ("sink_recent", 1.5, 1.3, True),
            ("h2o", -1.4, 0.45, False),
            ("snapkv", 1.6, 0.07, False),
            ("emeans_post_rope", -4.5, 1.2, False),
            ("emeans_pre_rope", -4.5, 1.1, False),
            ("pinned_emeans", 1.0, 0.09, False),
            ("snapkv_emeans", 1.4, 0.07, False),
        )
    ),
    Arm("sink_recent", "4x", 1.3, 1.32, "int8", 8.5, late_only=True),
)
POLICIES = {"full": "full", "emeans_pre_rope_proportional": "emeans_pre_rope"}
NASTY_OUTPUTS = (
    "The code is | `QZT` | <b>bold</b> [link](http://example.com) {{ 7 * 7 }}",
    "```\nI do not know.\n```",
    "I'm sorry, the text does not say.\n\n# Not a heading",
)


def recall_trials(
    *,
    study: str = "needle",
    models: Sequence[str] = ("smollm2-135m",),
    arms: Sequence[Arm] = ARMS,
    modes: Sequence[str] = ("aware", "agnostic"),
    contexts: Sequence[int] = (512, 1024),
    seeds: int = 4,
    seeds_per_shard: int = 4,
    depths: Sequence[int] = (10, 30, 50, 70, 90),
    haystack_sd: float = 0.8,
    no_context: bool = True,
    random_state: int = 0,
) -> list[dict[str, Any]]:
    """Make loaded trials (with `cell` and `embed_cosine`) of a fully crossed grid; same arguments, same trials."""
    rng = np.random.default_rng(random_state)
    trials: list[dict[str, Any]] = []
    for model in models:
        for context in contexts:
            for seed in range(seeds):
                hay = rng.normal(0, haystack_sd)
                for depth in depths:
                    needle_effect = rng.normal(0, 0.5)
                    reference = np.abs(rng.normal(0.12, 0.1, size=int(rng.integers(6, 13))))
                    letters = "".join(rng.choice(list("ABCDEFGHKLMNPQRSTUVXYZ"), 3))
                    base: dict[str, Any] = {
                        "study": study,
                        "model": model,
                        "haystack": "sentences",
                        "context": context,
                        "seed": seed,
                        "depth": depth,
                        "answer": f"{letters}-{rng.integers(1000, 10000)}",
                        "question": f"What is the code at {depth}% of haystack {seed}?",
                        "shard": seed // seeds_per_shard,
                    }
                    for mode in (*modes, *(("no_context",) if no_context else ())):
                        for arm in arms if mode != "no_context" else (FULL,):
                            effect = hay + needle_effect - 0.3 * (mode == "agnostic" and arm.method == "snapkv") * 5
                            trials.append(_trial(rng, {**base, "mode": mode}, arm, effect, reference))
    return trials


def _trial(
    rng: np.random.Generator, base: dict[str, Any], arm: Arm, effect: float, reference: np.ndarray
) -> dict[str, Any]:
    mode, context, depth = base["mode"], base["context"], base["depth"]
    shard = base["shard"]
    strength = arm.strength
    retained = _retained(rng, arm, depth)
    if arm.late_only and retained < 0.5:
        strength = -4.0
    hit = bool(mode != "no_context" and strength + effect + rng.normal(0, 0.4) > 0)
    nlls = reference + np.abs(rng.normal(arm.excess_nll, 0.1 * arm.excess_nll + 0.002, size=len(reference)))
    nlls = reference if arm == FULL else nlls
    slots = _slots(arm, context)
    payload = int(slots * VALUES_PER_TOKEN * arm.bits / 8)
    group = f"{mode}-{context}-{shard}"
    output = f"The code is {base['answer']}." if hit else NASTY_OUTPUTS[int(rng.integers(len(NASTY_OUTPUTS)))]
    trial = {
        **{key: value for key, value in base.items() if key != "shard"},
        "id": f"{base['study']}-{context}-s{base['seed']}-d{depth}",
        "arm": arm.name,
        "method": arm.method,
        "policy": POLICIES.get(arm.method, arm.method),
        "budget": arm.budget,
        "quantizer": arm.quantizer,
        "hit": hit,
        "output": output,
        "output_ids": [int(token) for token in rng.integers(0, 49_152, size=len(reference))],
        "gold_nlls": [float(x) for x in nlls[:4] * 1.1],
        "ref_nlls": [float(x) for x in nlls],
        "self_nlls": [float(x) for x in reference * (1.0 if arm == FULL else rng.uniform(1.0, 1.4))],
        "ref_kls": [0.0 if arm == FULL else float(x) for x in (nlls - reference) * 0.8],
        "ref_top1": [bool(x < 1.0) for x in nlls],
        "hidden_cosine": 1.0 if arm == FULL else float(1 - 0.015 * min(arm.excess_nll, 1.5)),
        "needle_retained": None if mode == "no_context" else retained,
        "prompt_tokens": context,
        "slots": float(slots),
        "full_slots": context - 1,
        "resident_bytes": payload + 4 * int(slots),
        "payload_bytes": payload,
        "peak_bytes": (context - 1) * VALUES_PER_TOKEN * 4,
        "full_bf16_bytes": (context - 1) * VALUES_PER_TOKEN * 2,
        "tokens_written": context + 24,
        "cell": f"results/synthetic/cells/{base['study']}/{base['model']}/{arm.name}/{group}.jsonl",
        "embed_cosine": 1.0 if arm == FULL else float(np.clip(0.95 - 0.3 * arm.excess_nll + rng.normal(0, 0.02), 0, 1)),
    }
    return trial


def _retained(rng: np.random.Generator, arm: Arm, depth: int) -> float:
    if arm.method == "full":
        return 1.0
    if arm.late_only:
        return 1.0 if depth >= 90 else 0.0
    return float(np.clip(1 / (1 + math.exp(-arm.strength)) + rng.normal(0, 0.05), 0, 1))


def _slots(arm: Arm, context: int) -> int:
    if arm.budget == "none":
        return context - 1
    middle = context - 1 - 36
    return 36 + middle // int(arm.budget.removesuffix("x"))


def write_cells(trials: Iterable[dict[str, Any]], root: Path) -> tuple[list[Path], list[Path]]:
    """Write loaded trials back as cell and embeddings files under `root`; return both lists of paths."""
    cells: dict[Path, list[dict[str, Any]]] = {}
    embeddings: dict[Path, list[dict[str, Any]]] = {}
    for trial in trials:
        path = root / trial["cell"]
        row = {key: value for key, value in trial.items() if key not in ("cell", "embed_cosine")}
        cells.setdefault(path, []).append(row)
        embeddings.setdefault(root / "embeddings" / f"{trial['model']}.jsonl", []).append(
            {
                "study": trial["study"],
                "arm": trial["arm"],
                "group": path.stem,
                "id": trial["id"],
                "embed_cosine": trial["embed_cosine"],
            }
        )
    for path, rows in cells.items():
        first = rows[0]
        spec = {
            key: first[key] for key in ("study", "model", "arm", "method", "budget", "quantizer", "mode", "context")
        }
        _write_lines(path, [{"cell": {"kind": "recall", **spec}, "fingerprint": "f" * 32}, *rows])
    for path, rows in embeddings.items():
        _write_lines(path, rows)
    return sorted(cells), sorted(embeddings)


def _write_lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def results_json(
    trials: Sequence[dict[str, Any]],
    *,
    claims_file: Path | str = CLAIMS_FILE,
    published: Path | str = "config/published",
) -> dict[str, Any]:
    """Make the whole results.json of a run whose only study is that of `trials`."""
    from kvatlas.analysis.claims import claim_file, judge
    from kvatlas.analysis.published import compare as published_module
    from kvatlas.analysis.studies import needle

    registry = judge.load(Path(claims_file))
    study = trials[0]["study"]
    arms = {trial["arm"] for trial in trials}
    section = needle.aggregate(trials, {"pairs": judge.pairs(registry, study, arms)})
    results: dict[str, Any] = {"schema": 1, "run": "synthetic", "studies": {study: section}}
    results["claims"] = judge.evaluate(registry, results)
    results["topics"] = claim_file.topics(claims_file)
    results["published"] = published_module.compare(Path(published), results, {study: trials})
    return results
