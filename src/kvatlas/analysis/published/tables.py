"""The published files of the source studies, and where their numbers stand in results.json.

Data only: names of methods, arms, columns and grids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.grid.arms import Arm
from kvatlas.grid.policy_parameters import FULL, NO_QUANTIZER

DEPTHS = (10, 30, 50, 70, 90)

METHODS = {
    "Baseline": FULL,
    "No compression": FULL,
    "Naive Drop": "naive_drop",
    "StreamingLLM": "streaming_llm",
    "H2O": "h2o",
    "SnapKV": "snapkv",
    "Post-RoPE AW E-Means": "emeans_post_rope",
    "Pre-RoPE AW E-Means": "emeans_pre_rope",
    "Pinned AW E-Means": "pinned_emeans",
    "SnapKV + PreRoPE EMeans": "snapkv_emeans",
    "L2Compress": "l2norm",
    "KeyDiff": "keydiff",
    "Random": "random",
    "High-L2": "high_l2",
}
"""The studies' names of methods -> method ids."""

PASSKEY_ARMS = {
    "No compression": Arm(FULL),
    "L2Compress": Arm("l2norm", "10%", protection="skip01"),
    "KeyDiff": Arm("keydiff", "10%"),
    "SnapKV": Arm("snapkv", "1024"),
}
SUITE_POLICIES = {"attention_sink": "sink_recent"}


@dataclass(frozen=True)
class Table:
    """One published file and where its numbers stand in results.json.

    `columns`: published column -> (field of the section's rows, factor from our unit to theirs). `grid`:
    what a run must have covered (contexts, depths; other studies: fields of their rows). `seeds`: number of
    published seeds, where trials can be subset.
    """

    file: str
    source: str
    study: str
    model: str
    arm: Callable[[Mapping[str, str]], str]
    columns: Mapping[str, tuple[str, float]]
    grid: Mapping[str, Any] = field(default_factory=dict)
    seeds: int | None = None
    mode: str | None = None


def _geometric_arm(row: Mapping[str, str]) -> Arm:
    return Arm(_method(row), f"{row['ratio']}x")


def _online_arm(row: Mapping[str, str]) -> Arm:
    return Arm(_method(row), "1000")


def _suite_arm(row: Mapping[str, str]) -> Arm:
    policy = SUITE_POLICIES.get(row["policy"], row["policy"])
    quantizer = NO_QUANTIZER if row["precision"] == "fp32" else row["precision"]
    return Arm(policy, f"{row['budget_pct']}%", quantizer)


def _method(row: Mapping[str, str]) -> str:
    if row["method"] not in METHODS:
        raise KvatlasError(f"config/published: method {row['method']!r} is unknown; known are {', '.join(METHODS)}")
    return METHODS[row["method"]]


_GEOMETRIC: dict[str, Any] = {
    "source": "geometric",
    "study": "needle",
    "model": "qwen2.5-1.5b-instruct",
    "mode": "aware",
    "arm": lambda row: _geometric_arm(row).id,
    "grid": {"contexts": (1024, 2048, 3072), "depths": DEPTHS},
    "seeds": 3,
}
_SUITE: dict[str, Any] = {
    "source": "kvstudy",
    "study": "task_suite",
    "model": "qwen2.5-0.5b-instruct",
    "arm": lambda row: _suite_arm(row).id,
}

TABLES: tuple[Table, ...] = (
    Table(
        file="geometric_summary.csv",
        columns={
            "kv_mib": ("resident_bf16_mib", 1.0),
            "recall_pct": ("recall", 100.0),
            "recall_se_pct": ("recall_se_published", 100.0),
            "ref_ppl": ("ref_ppl", 1.0),
            "ref_ppl_se": ("ref_ppl_se", 1.0),
            "self_ppl": ("self_ppl", 1.0),
            "embed_cossim": ("embed_cosine", 1.0),
            "hidden_cossim": ("hidden_cosine", 1.0),
        },
        **_GEOMETRIC,
    ),
    Table(
        file="geometric_recall_by_depth.csv",
        # Of 9 needles per depth: ours are restated to 9 whatever the number of seeds.
        columns={f"hits_d{depth}": (f"recall_d{depth}", 9.0) for depth in DEPTHS},
        **_GEOMETRIC,
    ),
    Table(
        file="passkey_16k.csv",
        source="l2kv",
        study="passkey",
        model="qwen2.5-3b-instruct",
        mode="aware",
        arm=lambda row: PASSKEY_ARMS[row["method"]].id,
        columns={"accuracy_pct": ("recall", 100.0), "memory_saved_pct": ("saved_share", 100.0)},
        grid={"contexts": (16384,)},
        seeds=3,
    ),
    Table(
        file="online_lm_1k.csv",
        source="l2kv",
        study="online_lm",
        model="qwen2.5-3b-instruct",
        arm=lambda row: _online_arm(row).id,
        columns={"perplexity": ("ppl", 1.0), "next_token_accuracy_pct": ("accuracy", 100.0)},
        grid={"tokens": 8192},
    ),
    Table(
        file="task_suite.csv",
        columns={
            "accuracy_pct": ("accuracy", 100.0),
            "kv_kib": ("kv_kib", 1.0),
            "memory_vs_control": ("kv_share", 1.0),
        },
        **_SUITE,
    ),
    Table(
        file="task_suite_needle_depth.csv",
        columns={f"d{depth}": (f"accuracy_needle_d{depth}", 1.0) for depth in (5, 35, 65, 95)},
        **_SUITE,
    ),
    Table(file="task_suite_perplexity.csv", columns={"perplexity": ("single_forward_ppl", 1.0)}, **_SUITE),
    Table(
        file="quantizer_error.csv",
        source="kvstudy",
        study="quantizer_error",
        model="qwen2.5-0.5b-instruct",
        arm=lambda row: row["quantizer"],
        columns={
            "bits_per_value": ("bits_per_value", 1.0),
            "key_relative_error": ("key_l1", 1.0),
            "value_relative_error": ("value_l1", 1.0),
        },
    ),
)
