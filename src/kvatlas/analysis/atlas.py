"""Several finished reports side by side: claims by model, and whether methods keep their rank from model to model.

Of the reports that ran a model, the one with most clusters speaks for it, claim by claim. Knows results.json and the trials;
judges nothing again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from scipy import stats

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json

STUDY, MODE = "needle", "aware"
DRAWS, SEED = 1000, 20240601
_COLUMNS = ("study", "model", "mode", "arm", "method", "quantizer", "context", "seed", "hit")

Row = Mapping[str, Any]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Entry:
    """One report of the atlas: its folder's name, its results, its configuration and its recall trials."""

    name: str
    results: Row
    config: Row
    trials: Sequence[Row]

    @property
    def models(self) -> list[str]:
        """The models that have rows in it."""
        sections = self.results["studies"].values()
        return sorted({str(row["model"]) for section in sections for row in (section or {}).get("rows") or ()})


def read(folder: Path) -> Entry:
    """Read a report. Raises KvatlasError where the folder is none."""
    results, config = read_json(folder / "results.json"), read_json(folder / "config.json")
    if "studies" not in results or "claims" not in results:
        raise KvatlasError(f"{folder}: not the folder of a report; build one with snakemake")
    try:
        trials = pq.read_table(
            folder / "trials.parquet", columns=list(_COLUMNS), filters=[("study", "=", STUDY), ("mode", "=", MODE)]
        )
    except (OSError, ValueError) as error:
        raise KvatlasError(f"{folder}/trials.parquet: cannot be read; build the report again with snakemake") from error
    return Entry(folder.name, results, config, trials.to_pylist())


def models(entries: Sequence[Entry]) -> list[str]:
    """List the models of all reports."""
    return sorted({model for entry in entries for model in entry.models})


def speaker(entries: Sequence[Entry], model: str) -> Entry:
    """Return the report that speaks for a model in figures and ranks: the one with most haystacks, then most arms."""

    def size(entry: Entry) -> tuple[int, int]:
        rows = [row for row in (entry.results["studies"].get(STUDY) or {}).get("rows") or () if row["model"] == model]
        return max((row["n_clusters"] for row in rows), default=0), len(rows)

    return max((entry for entry in entries if model in entry.models), key=size)


def claim_rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return a row per claim: its id, sentence and study, and by model the verdict that rests on most clusters."""
    rows: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for claim in entry.results["claims"]:
            row = rows.setdefault(
                claim["id"], {**{key: claim[key] for key in ("id", "sentence", "study", "source")}, "verdicts": {}}
            )
            known = row["verdicts"].get(claim["model"])
            if claim["verdict"] != "not run" and (known is None or _clusters(claim) > _clusters(known)):
                row["verdicts"][claim["model"]] = claim | {"report": entry.name}
    return [row for row in rows.values() if row["verdicts"]]


def _clusters(claim: Row) -> int:
    return claim.get("n_clusters") or 0


def ranks(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return for every two models how far their methods' ranks by recall agree: Kendall's tau-b over the arms of both.

    The interval is a percentile bootstrap that draws the haystacks of either model again, `DRAWS` times.
    """
    found = []
    for first, second in combinations(models(entries), 2):
        tables = [_hits(speaker(entries, model).trials, model) for model in (first, second)]
        arms = sorted(set(tables[0]) & set(tables[1]))
        if len(arms) < 3:
            continue
        hits = [np.stack([table[arm] for arm in arms]) for table in tables]
        generator = np.random.default_rng(SEED)
        draws = [_tau(*(_redrawn(each, generator) for each in hits)) for _ in range(DRAWS)]
        known = [tau for tau in draws if not np.isnan(tau)]
        tau = _tau(*(each.mean(axis=1) for each in hits))
        ci = [float(bound) for bound in np.quantile(known, [0.025, 0.975])] if known else None
        found.append({"models": [first, second], "arms": arms, "tau": None if np.isnan(tau) else tau, "ci": ci})
    return found


def _hits(trials: Sequence[Row], model: str) -> dict[str, Matrix]:
    """Map each compressed, unquantized arm to its recall per haystack, for the arms that saw every haystack."""
    by_arm: dict[str, dict[tuple[int, int], list[bool]]] = {}
    for trial in trials:
        if trial["model"] == model and trial["quantizer"] == "none" and trial["method"] != "full":
            by_arm.setdefault(trial["arm"], {}).setdefault((trial["context"], trial["seed"]), []).append(trial["hit"])
    haystacks = max((set(clusters) for clusters in by_arm.values()), key=len, default=set())
    return {
        arm: np.array([np.mean(clusters[key]) for key in sorted(haystacks)])
        for arm, clusters in by_arm.items()
        if set(clusters) == haystacks
    }


def _redrawn(hits: Matrix, generator: np.random.Generator) -> Matrix:
    drawn: Matrix = hits[:, generator.integers(hits.shape[1], size=hits.shape[1])].mean(axis=1)
    return drawn


def _tau(first: Matrix, second: Matrix) -> float:
    return float(stats.kendalltau(first, second).statistic)
