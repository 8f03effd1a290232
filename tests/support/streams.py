"""Synthetic trials of the online and attention-loss studies, seeded, for tests of the analysis and the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# (method, protection, mean loss over the full cache after the budget binds, in nats)
ONLINE_ARMS = (
    ("snapkv", "base", 0.05),
    ("keydiff", "base", 0.30),
    ("l2norm", "base", 0.45),
    ("random", "base", 1.4),
    ("high_l2", "base", 2.5),
    ("sink_recent", "fair", 0.10),
    ("snapkv", "fair", 0.04),
    ("random", "fair", 0.10),
    ("keydiff", "fair", 0.20),
)
FAIR = {"n_sinks": 4, "n_recent": 32}
BARE = {"n_sinks": 0, "n_recent": 0}


def online_trials(
    *,
    models: Sequence[str] = ("smollm2-135m",),
    tokens: int = 2048,
    block: int = 32,
    budgets: Sequence[int] = (256, 512),
    protocols: Sequence[str] = ("online",),
    blocks: Sequence[int] = (),
    noise: float = 0.4,
) -> list[dict[str, Any]]:
    """Make paired trials: one shared loss per token, and what each arm adds to it once its budget binds."""
    rng = np.random.default_rng(7)
    trials = []
    for model in models:
        shared = rng.gamma(2.0, 1.6, size=tokens - 1)
        protocols_and_blocks = [(protocol, block) for protocol in protocols] + [("online", size) for size in blocks]
        for protocol, size in protocols_and_blocks:
            common = (model, protocol, size, tokens, shared)
            trials.append(_trial(rng, common, "full", "base", "none", 0.0, noise))
            for budget in budgets if protocol == "online" else budgets[:1]:
                for method, protection, loss in ONLINE_ARMS:
                    trials.append(_trial(rng, common, method, protection, str(budget), loss * 256 / budget, noise))
    return trials


def _trial(
    rng: np.random.Generator,
    common: tuple[str, str, int, int, np.ndarray],
    method: str,
    protection: str,
    budget: str,
    loss: float,
    noise: float,
) -> dict[str, Any]:
    model, protocol, block, tokens, shared = common
    full = method == "full"
    first = tokens // 2 if protocol == "prefill" else 0
    slots = tokens if full else int(budget)
    start: int | None = first if protocol == "prefill" else (slots // block + 1) * block
    if full or protocol == "single":
        start = None
    nlls = shared.copy()
    if start is not None:
        nlls[start:] += rng.normal(loss, noise, size=nlls.size - start)
    hits = nlls < 1.5
    label = "" if full else f"-{budget}slots"
    bytes_per_slot = 11_520 * 4
    return {
        "study": "online_lm",
        "model": model,
        "arm": f"{method}{label}{'' if protection == 'base' else f'-{protection}'}",
        "method": method,
        "policy": method,
        "budget": budget,
        "quantizer": "none",
        "protection": protection,
        "protocol": protocol,
        "tokens": tokens,
        "block": block,
        "text": "lee-news",
        "id": f"lee-news-{tokens}",
        **(FAIR if protection == "fair" else BARE),
        "skip_layers": [],
        "reindexed": False,
        "first_prediction": first,
        "first_compressed": start,
        "nlls": nlls[first:].tolist(),
        "hits": hits[first:].tolist(),
        "slots": float(slots),
        "peak_slots": tokens if full else slots + block,
        "resident_bytes": slots * bytes_per_slot,
        "payload_bytes": slots * bytes_per_slot,
        "peak_bytes": min(tokens, slots + block) * bytes_per_slot,
        "full_bf16_bytes": tokens * 11_520 * 2,
        "tokens_written": tokens,
    }


def loss_trials(
    *, models: Sequence[str] = ("smollm2-135m",), prompts: int = 6, layers: int = 30, heads: int = 9, kv_heads: int = 3
) -> list[dict[str, Any]]:
    """Make attention-loss trials in which layers 0 and 1 lose more than the others."""
    rng = np.random.default_rng(11)
    trials = []
    for model in models:
        for method, level in (("l2norm", 0.12), ("keydiff", 0.11), ("snapkv", 0.05), ("random", 0.37)):
            for prompt in range(prompts):
                alr = np.abs(rng.normal(level, 0.01, size=(layers, heads)))
                alr[:2] += 0.08
                expected = np.full((layers, heads), 0.37)
                trials.append(
                    {
                        "study": "attention_loss",
                        "model": model,
                        "arm": method,
                        "method": method,
                        "policy": method,
                        "text": "lee-news",
                        "context": 512,
                        "queries": 8,
                        "prompt": prompt,
                        "id": f"lee-news-512-p{prompt}",
                        "alr": alr.tolist(),
                        "alr_sd": np.full((layers, heads), 0.02).tolist(),
                        "random_alr": expected.tolist(),
                        "alr_kv": (alr[:, :kv_heads] * 0.95).tolist(),
                        "random_alr_kv": expected[:, :kv_heads].tolist(),
                    }
                )
    return trials
