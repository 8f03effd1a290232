"""One claim as data, and the reading of config/claims.yaml.

Knows what the file's keys mean together (their shapes are in claims.schema.json) and how patterns become arms; knows no
results.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from kvatlas.analysis.claims import verdicts
from kvatlas.analysis.studies.recall_contrasts import ADDITIVE
from kvatlas.errors import KvatlasError
from kvatlas.grid.arms import budget_id
from kvatlas.schemas import reader
from kvatlas.schemas.messages import closest

ANY_BUDGET = "any"
BUDGET = "{budget}"
"""Stands in an arm's pattern for each of the claim's budgets."""

Pair = tuple[str, str | None]


@dataclass(frozen=True)
class Claim:
    """One claim of config/claims.yaml.

    `contrasts` are (arm, versus) patterns; {budget} in them stands for each of `budgets`. Level and value
    tests name arms alone. `margin`: see `verdicts.judge_contrast`; for a level it is the bound. `where`:
    fields that a row must have (a head dimension). `topic`: the title that it stands under in the report.
    `headline`: whether the report opens with it.
    """

    id: str
    sentence: str
    source: str
    source_title: str
    study: str
    metric: str
    test: str
    contrasts: tuple[Pair, ...]
    topic: str | None = None
    budgets: tuple[str, ...] = ()
    mode: str | None = None
    direction: str = "greater"
    margin: float = 0.0
    target: float | None = None
    family: str = "secondary"
    models: tuple[str, ...] = ()
    where: tuple[tuple[str, Any], ...] = ()
    headline: bool = False

    def parts(self, arms: Collection[str]) -> list[Pair]:
        """Return the (arm, versus) pairs; `budgets: any` means every budget at which a run has all of them."""
        if self.budgets != (ANY_BUDGET,):
            budget_ids = [budget_id(budget) for budget in self.budgets] or [""]
            return list(dict.fromkeys(pair for budget in budget_ids for pair in self._at(budget)))
        per_budget = [self._at(budget) for budget in self._budgets_of(arms)]
        return [pair for pairs in per_budget if all(known(pair, arms) for pair in pairs) for pair in pairs]

    def _at(self, budget: str) -> list[Pair]:
        """The pairs at one budget, as it is written in arm ids: 50pct, 256slots."""
        return [
            (arm.replace(BUDGET, budget), versus.replace(BUDGET, budget) if versus else None)
            for arm, versus in self.contrasts
        ]

    def _budgets_of(self, arms: Collection[str]) -> list[str]:
        """The budgets, as in arm ids, of the arms that fit one of the patterns."""
        patterns = [
            re.escape(pattern).replace(re.escape(BUDGET), "([^-]+)", 1)
            for pair in self.contrasts
            for pattern in pair
            if pattern is not None and BUDGET in pattern
        ]
        matches = [re.fullmatch(pattern, arm) for pattern in patterns for arm in arms]
        return sorted({match[1] for match in matches if match})


def read(path: Path | str) -> dict[str, Any]:
    """Read a claims file and check its shape. Raises KvatlasError naming the file and the key that is wrong."""
    content: dict[str, Any] = reader.read_checked(
        path, "claims", way_out="name the claims file of the repository, config/claims.yaml"
    )
    return content


def load(path: Path | str) -> list[Claim]:
    """Read and check the claims of a claims file. Raises KvatlasError naming the claim and the key that is wrong."""
    content = read(path)
    seen: set[str] = set()
    claims = []
    for entry in content["claims"]:
        where = f"{path}: claims[{entry['id']}]"
        if entry["id"] in seen:
            raise KvatlasError(f"{where}.id: this id is used twice; ids are unique")
        seen.add(entry["id"])
        claims.append(_claim(entry, content, where))
    return claims


def topics(path: Path | str) -> list[str]:
    """Read the titles of a claims file's topics, in the order of the report."""
    return list(read(path).get("topics", {}).values())


def known(pair: Pair, arms: Collection[str]) -> bool:
    """Return whether both sides of a pair are arms of a run (or what an interaction is compared with)."""
    arm, versus = pair
    return arm in arms and (versus is None or versus == ADDITIVE or versus in arms)


def _claim(entry: Mapping[str, Any], content: Mapping[str, Any], where: str) -> Claim:
    for key, titles in (("source", content["sources"]), ("topic", content.get("topics", {}))):
        if key in entry and entry[key] not in titles:
            known_keys = ", ".join(titles) or "none"
            raise KvatlasError(
                f"{where}.{key}: {entry[key]!r} is not one of {known_keys}{closest(entry[key], titles)}; "
                f"add it to `{key}s`"
            )
    if entry["test"] in ("non_inferiority", "equivalence", "difference") and not entry.get("margin", 0) > 0:
        raise KvatlasError(f"{where}: test {entry['test']} needs `margin` above zero")
    if (entry["test"] == "value") != ("target" in entry):
        raise KvatlasError(f"{where}: `target` belongs to test value, and only to it")
    return Claim(
        **{key: entry[key].strip() for key in ("id", "sentence", "source", "study", "metric", "test")},
        source_title=content["sources"][entry["source"]],
        topic=content["topics"][entry["topic"]] if "topic" in entry else None,
        contrasts=_contrasts(entry, where),
        budgets=tuple(_listed(entry.get("budgets"))),
        mode=entry.get("mode"),
        direction=entry.get("direction", "greater"),
        margin=float(entry.get("margin", 0.0)),
        target=entry.get("target"),
        family=entry.get("family", "secondary"),
        models=tuple(entry.get("models", ())),
        where=tuple(sorted(entry.get("where", {}).items())),
        headline=entry.get("headline", False),
    )


def _contrasts(entry: Mapping[str, Any], where: str) -> tuple[Pair, ...]:
    """Read `pairs: [[arm, versus], ...]`, or `arms` times `versus`; `versus: itself` compares within an arm."""
    if ("pairs" in entry) == ("arms" in entry):
        raise KvatlasError(f"{where}: needs either `arms` (with `versus`) or `pairs`")
    alone = entry["test"] in verdicts.LEVEL_TESTS
    if alone == ("versus" in entry or "pairs" in entry):
        raise KvatlasError(
            f"{where}: test {entry['test']} {'takes arms alone' if alone else 'needs `versus` or `pairs`'}"
        )
    if "pairs" in entry:
        return tuple((arm, versus) for arm, versus in entry["pairs"])
    if entry.get("versus") == "itself":
        return tuple((arm, arm) for arm in _listed(entry["arms"]))
    return tuple(product(_listed(entry["arms"]), _listed(entry["versus"]) if "versus" in entry else (None,)))


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
