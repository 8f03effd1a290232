"""What the published tables of a report say about its arms, computed without `kvatlas.analysis`.

A section holds what one study measured on one model, in one question mode: `arms`, contrasts between them, and levels.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from tests.support.recomputed import (
    Bounds,
    Evidence,
    clopper_pearson,
    korn_graubard,
    paired,
    stratified,
    stream,
    t_interval,
)

TABLES = ("trials", "streams", "measurements")
TOKENS = {"ref_nll": "ref_nlls", "self_nll": "self_nlls", "gold_nll": "gold_nlls"}
PROTOCOLS = {"single_forward_nll": "single", "prefill_then_score_nll": "prefill", "online_nll": "online"}
FAMILIES = ("needle", "instruction", "multi_turn", "summary")
BANDS = {"layers_0_1": (0, 1), "layers_19_21_29": (19, 20, 21, 29)}
TREND, INTERACTION = "last_minus_first_depth", "interaction"

Row = dict[str, Any]
Tables = dict[str, list[Row]]


def read(folder: Path) -> Tables:
    """The rows of every table that a report has."""
    paths = [folder / f"{name}.parquet" for name in TABLES]
    return {path.stem: pq.read_table(path).to_pylist() if path.is_file() else [] for path in paths}


class Section:
    """A study that is not about hits has no gate."""

    arms: dict[str, Any]

    def closed(self, metric: str) -> bool:
        return False


class Prompts(Section):
    """Needle, passkey and the task suite, with the passages of the suite."""

    def __init__(self, tables: Tables, study: str, model: str, mode: str | None, head_dim: int | None) -> None:
        rows = [row for row in tables["trials"] if (row["study"], row["model"]) == (study, model)]
        self.suite = study == "task_suite"
        self.no_context = [row for row in rows if row["mode"] == "no_context"]
        self.arms = grouped([row for row in rows if row["mode"] == (mode or "suite")], lambda row: row["arm"])
        passages = [row for row in tables["streams"] if (row["study"], row["model"]) == (study, model)]
        self.passages = {(row["arm"], row["protocol"]): row for row in passages}

    def closed(self, metric: str) -> bool:
        """Hits are compared where the full cache masters the task, and nothing is guessed without the context."""
        full, no_context = self.of_family(self.arms.get("full", []), metric), self.of_family(self.no_context, metric)
        mastered = full and np.mean([row["hit"] for row in full]) > 0.8
        guessed = not no_context or np.mean([row["hit"] for row in no_context]) >= 0.1
        return of_hits(metric) and not (mastered and not guessed)

    def of_family(self, rows: list[Row], metric: str) -> list[Row]:
        name = metric.removeprefix("accuracy_")
        family = "needle" if name == TREND else name
        return [row for row in rows if row["family"] == family] if self.suite and family in FAMILIES else rows

    def cluster(self, row: Row) -> tuple[Any, ...]:
        return (row["instance"],) if self.suite else (row["haystack"], row["context"], row["seed"])

    def strata(self, clusters: list[tuple[Any, ...]]) -> list[Any]:
        return [None if self.suite else cluster[:2] for cluster in clusters]

    def values(self, arm: str, metric: str) -> dict[tuple[Any, ...], float] | None:
        """The metric per cluster; None where a cluster has none."""
        groups = grouped(self.of_family(self.arms[arm], metric), self.cluster)
        values = {cluster: value_of(groups[cluster], metric) for cluster in sorted(groups)}
        known = {cluster: value for cluster, value in values.items() if value is not None}
        return known if len(known) == len(values) else None

    def contrast(self, arm: str, versus: str, metric: str) -> Evidence | None:
        if metric in PROTOCOLS:
            pair = [self.passages.get((name, PROTOCOLS[metric])) for name in (arm, versus)]
            return None if None in pair else stream(np.subtract(*(passage["nlls"] for passage in pair)))
        names, signs = ([arm], (1,)) if arm == versus else ([arm, versus], (1, -1))
        if metric.endswith(INTERACTION) and arm in self.arms:
            quantizer = self.arms[arm][0]["quantizer"]
            names, signs = [arm, arm.removesuffix(f"-{quantizer}"), f"full-{quantizer}", "full"], (1, -1, -1, 1)
        columns = [self.values(name, metric) if name in self.arms else None for name in names]
        if None in columns:
            return None
        shared = [cluster for cluster in columns[0] if all(cluster in column for column in columns)]
        gaps = [sum(s * column[cluster] for s, column in zip(signs, columns, strict=True)) for cluster in shared]
        asked = sum(self.cluster(row) in shared for row in self.of_family(self.arms[arm], metric))
        prompts = (len(shared) if metric.endswith(TREND) else asked) if of_hits(metric) else None
        return paired(gaps, self.strata(shared), prompts) if shared else None

    def level(self, arm: str, metric: str) -> tuple[float, Bounds | None, int]:
        rows = self.of_family(self.arms[arm], metric)
        n_clusters = len({self.cluster(row) for row in self.arms[arm]})
        if metric == "recall":
            by_cluster = self.values(arm, metric)
            values, strata = list(by_cluster.values()), self.strata(list(by_cluster))
            return stratified(values, strata)[0], korn_graubard(values, strata, len(rows)), n_clusters
        if metric.startswith("accuracy_"):
            hits = sum(row["hit"] for row in rows)
            return hits / len(rows), clopper_pearson(hits, len(rows)), n_clusters
        fields = ("slots", "full_slots", "payload_bytes", "full_bf16_bytes")
        slots, full_slots, payload, full_bf16 = (np.mean([row[name] for row in rows]) for name in fields)
        plain = rows[0]["quantizer"] == "none"
        sizes = {
            "saved_share": 1 - slots / full_slots,
            "actual_ratio": full_slots / slots,
            "kv_share": payload / (2 * full_bf16),  # over the fp32 cache
            "kv_share_of_bf16": slots / full_slots if plain else payload / full_bf16,
        }
        return float(sizes[metric]), None, n_clusters


class Stream(Section):
    """Online language modelling: the stream of a model, in the block size that most arms have."""

    def __init__(self, tables: Tables, study: str, model: str, mode: str | None, head_dim: int | None) -> None:
        stream = (study, model, "online")
        rows = [row for row in tables["streams"] if (row["study"], row["model"], row["protocol"]) == stream]
        sizes = Counter(row.get("block") for row in rows)
        usual = max(sizes, key=lambda size: (sizes[size], size), default=None)
        rows = [row for row in rows if row.get("block") == usual]
        self.arms = {row["arm"]: row for row in rows}
        assert len(self.arms) == len(rows), "an arm has several streams that the table does not tell apart"

    def contrast(self, arm: str, versus: str, metric: str) -> Evidence | None:
        pair = [self.arms[name] for name in (arm, versus)]
        begin = 0
        if metric.startswith("post_"):  # from the first prediction that either made with a smaller cache
            starts = [row["first_compressed"] for row in pair if row["first_compressed"] is not None]
            if not starts:
                return None
            begin = max(0, min(starts) - pair[0]["first_prediction"])
        field = "hits" if metric.endswith("accuracy") else "nlls"
        first, second = (np.array(row[field], dtype=float).reshape(row["passages"] or 1, -1) for row in pair)
        return stream((first - second)[:, begin:].ravel())


class Losses(Section):
    """Attention loss of ranking by the L2 norm: groups of layers against the others; prompts are the clusters."""

    def __init__(self, tables: Tables, study: str, model: str, mode: str | None, head_dim: int | None) -> None:
        rows = [row for row in tables["measurements"] if (row["study"], row["model"]) == (study, model)]
        self.rows = [row for row in rows if row["arm"] == "l2norm"]
        self.arms = dict.fromkeys((*BANDS, "other_layers")) if self.rows else {}

    def contrast(self, arm: str, versus: str, metric: str) -> Evidence | None:
        prompts = grouped([row for row in self.rows if row["metric"] == metric], lambda row: row["id"])
        gaps = []
        for rows in prompts.values():
            layers = grouped(rows, lambda row: row["layer"])
            means = {layer: np.mean([row["value"] for row in heads]) for layer, heads in layers.items()}
            if not set(BANDS[arm]) < set(means):
                return None
            others = [mean for layer, mean in means.items() if layer not in BANDS[arm]]
            gaps.append(float(np.mean([means[layer] for layer in BANDS[arm]]) - np.mean(others)))
        return paired(gaps, None, None)


class Errors(Section):
    """Quantizer error: sums per layer, pooled over layers and chunks; chunks are the clusters."""

    def __init__(self, tables: Tables, study: str, model: str, mode: str | None, head_dim: int | None) -> None:
        self.arms: dict[str, dict[str, dict[str, list[float]]]] = {}
        for row in tables["measurements"]:
            # Integers are measured per channel too, which is not how they are stored.
            if (row["study"], row["model"]) == (study, model) and row["granularity"] != "channel":
                chunk = self.arms.setdefault(row["arm"], {}).setdefault(row["id"], {})
                chunk.setdefault(row["metric"], []).append(row["value"])
        if head_dim is not None:
            fits = {
                arm: all(chunk["head_dim"] == [head_dim] for chunk in chunks.values())
                for arm, chunks in self.arms.items()
            }
            self.arms = {arm: chunks for arm, chunks in self.arms.items() if fits[arm]}

    def contrast(self, arm: str, versus: str, metric: str) -> Evidence:
        first, second = self.arms[arm], self.arms[versus]
        return paired([error([first[name]], metric) - error([second[name]], metric) for name in first], None, None)

    def level(self, arm: str, metric: str) -> tuple[float, Bounds | None, int]:
        chunks = list(self.arms[arm].values())
        if metric == "bits_per_value":
            return chunks[0][metric][0], None, len(chunks)
        return error(chunks, metric), t_interval([error([chunk], metric) for chunk in chunks]), len(chunks)


SECTIONS: dict[str, Callable[..., Section]] = {
    "needle": Prompts,
    "passkey": Prompts,
    "task_suite": Prompts,
    "online_lm": Stream,
    "attention_loss": Losses,
    "quantizer_error": Errors,
}


def of_hits(metric: str) -> bool:
    return metric.startswith(("recall", "accuracy"))


def grouped(rows: list[Row], key: Any) -> dict[Any, list[Row]]:
    groups = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def value_of(rows: list[Row], metric: str) -> float | None:
    """A metric over the prompts of one cluster."""
    if metric.endswith(TREND):
        depths = {row["depth"] for row in rows} - {None}
        if len(depths) < 2:
            return None
        last, first = (
            np.mean([row["hit"] for row in rows if row["depth"] == end]) for end in (max(depths), min(depths))
        )
        return float(last - first)
    if metric in TOKENS:
        values = [value for row in rows for value in row[TOKENS[metric]]]
    else:
        values = [row["hit" if of_hits(metric) else metric] for row in rows]
    return None if not values or None in values else float(np.mean(values))


def error(chunks: list[dict[str, list[float]]], metric: str) -> float:
    """The error of some chunks over their signal, in the L1 or the Frobenius norm."""
    tensor, norm = metric.split("_")
    sums = [
        math.fsum(value for chunk in chunks for value in chunk[f"{tensor}_{of}_{'l1' if norm == 'l1' else 'sq'}"])
        for of in ("error", "signal")
    ]
    return sums[0] / sums[1] if norm == "l1" else math.sqrt(sums[0] / sums[1])
