"""One claim as data, and the reading of config/claims.yaml.

Knows the file's keys and how patterns become arms; knows no results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from kvatlas.analysis.claims import verdicts
from kvatlas.analysis.studies.recall_contrasts import ADDITIVE
from kvatlas.errors import KvatlasError

ANY_BUDGET = "any"
CHOICES: dict[str, tuple[str, ...]] = {
    "test": (*verdicts.CONTRAST_TESTS, *verdicts.LEVEL_TESTS),
    "family": ("primary", "secondary"),
    "direction": ("greater", "less"),
}
REQUIRED = ("id", "sentence", "source", "study", "metric", "test")
OPTIONAL = (
    "arms",
    "versus",
    "pairs",
    "budgets",
    "mode",
    "direction",
    "margin",
    "target",
    "family",
    "models",
    "where",
)


@dataclass(frozen=True)
class Claim:
    """One claim of config/claims.yaml.

    `contrasts` are (arm, versus) patterns; {budget} in them stands for each of `budgets`. Level and value
    tests name arms alone. `margin`: see `verdicts.judge_contrast`; for a level it is the bound. `where`:
    fields that a row must have (a head dimension).
    """

    id: str
    sentence: str
    source: str
    source_title: str
    study: str
    metric: str
    test: str
    contrasts: tuple[tuple[str, str | None], ...]
    budgets: tuple[str, ...] = ()
    mode: str | None = None
    direction: str = "greater"
    margin: float = 0.0
    target: float | None = None
    family: str = "secondary"
    models: tuple[str, ...] = ()
    where: tuple[tuple[str, Any], ...] = ()

    def parts(self, arms: Collection[str]) -> list[tuple[str, str | None]]:
        """Return the (arm, versus) pairs; `budgets: any` means every budget at which a run has all of them."""
        if self.budgets != (ANY_BUDGET,):
            return list(
                dict.fromkeys(
                    (_fill(arm, budget), _fill(versus, budget) if versus else None)
                    for budget in self.budgets or ("",)
                    for arm, versus in self.contrasts
                )
            )
        budgets = sorted({label for arm in arms for label in arm.split("-")[1:2] if label})
        per_budget = [
            [(_fill(arm, budget), _fill(versus, budget) if versus else None) for arm, versus in self.contrasts]
            for budget in budgets
        ]
        complete = [pairs for pairs in per_budget if all(known(pair, arms) for pair in pairs)]
        return [pair for pairs in complete for pair in pairs]


def load(path: Path | str) -> list[Claim]:
    """Read and check the claims file. Raises KvatlasError naming the claim and the key that is wrong."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise KvatlasError(
            f"{path}: no such file; name the claims file of the repository, config/claims.yaml"
        ) from error
    except yaml.YAMLError as error:
        raise KvatlasError(f"{path}: not valid YAML ({str(error).splitlines()[0]}); mend that line") from error
    entries, sources = (content.get(key) if isinstance(content, dict) else None for key in ("claims", "sources"))
    if not isinstance(entries, list) or not isinstance(sources, dict):
        raise KvatlasError(f"{path}: needs a mapping `sources` (key to title) and a list `claims`")
    claims = [_claim(entry, sources, f"{path}: claim {number}") for number, entry in enumerate(entries, start=1)]
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise KvatlasError(f"{path}: claim {claim.id}: id is used twice; ids are unique")
        seen.add(claim.id)
    return claims


def known(pair: tuple[str, str | None], arms: Collection[str]) -> bool:
    """Return whether both sides of a pair are arms of a run (or what an interaction is compared with)."""
    arm, versus = pair
    return arm in arms and (versus is None or versus == ADDITIVE or versus in arms)


def _fill(pattern: str, budget: str) -> str:
    """Put a budget into an arm pattern, written as in paths: 50% is 50pct, 256 is 256slots."""
    label = budget.replace("%", "pct")
    return pattern.replace("{budget}", f"{label}slots" if label.isdigit() else label)


def _claim(entry: Any, sources: Mapping[str, str], where: str) -> Claim:
    if not isinstance(entry, dict):
        raise KvatlasError(f"{where}: is not a mapping of keys")
    where = f"{where} ({entry.get('id', 'without id')})"
    for key in REQUIRED:
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            raise KvatlasError(f"{where}: needs `{key}`, a text")
    unknown = sorted(set(entry) - {*REQUIRED, *OPTIONAL})
    if unknown:
        raise KvatlasError(f"{where}: unknown key {unknown[0]}; allowed are {', '.join((*REQUIRED, *OPTIONAL))}")
    for key, allowed in CHOICES.items():
        if key in entry and entry[key] not in allowed:
            raise KvatlasError(f"{where}: {key} {entry[key]!r} is not one of {', '.join(allowed)}")
    if entry["source"] not in sources:
        raise KvatlasError(f"{where}: source {entry['source']!r} is not one of {', '.join(sources)}")
    for key in ("margin", "target"):
        if not isinstance(entry.get(key, 0), (int, float)):
            raise KvatlasError(f"{where}: `{key}` is a number, not {entry[key]!r}")
    if entry["test"] in ("non_inferiority", "equivalence", "difference") and not entry.get("margin", 0) > 0:
        raise KvatlasError(f"{where}: test {entry['test']} needs `margin` above zero")
    if (entry["test"] == "value") != ("target" in entry):
        raise KvatlasError(f"{where}: `target` belongs to test value, and only to it")
    return Claim(
        **{key: entry[key].strip() for key in REQUIRED},
        source_title=sources[entry["source"]],
        contrasts=_contrasts(entry, where),
        budgets=tuple(str(budget) for budget in _listed(entry.get("budgets"))),
        mode=entry.get("mode"),
        direction=entry.get("direction", "greater"),
        margin=float(entry.get("margin", 0.0)),
        target=entry.get("target"),
        family=entry.get("family", "secondary"),
        models=tuple(_listed(entry.get("models"))),
        where=tuple(sorted((entry.get("where") or {}).items())),
    )


def _contrasts(entry: Mapping[str, Any], where: str) -> tuple[tuple[str, str | None], ...]:
    """Read `pairs: [[arm, versus], ...]`, or `arms` times `versus`; `versus: itself` compares within an arm."""
    if ("pairs" in entry) == ("arms" in entry):
        raise KvatlasError(f"{where}: needs either `arms` (with `versus`) or `pairs`")
    alone = entry["test"] in verdicts.LEVEL_TESTS
    if alone == ("versus" in entry or "pairs" in entry):
        raise KvatlasError(
            f"{where}: test {entry['test']} {'takes arms alone' if alone else 'needs `versus` or `pairs`'}"
        )
    if "pairs" in entry:
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in entry["pairs"]):
            raise KvatlasError(f"{where}: `pairs` is a list of [arm, versus]")
        return tuple((arm, versus) for arm, versus in entry["pairs"])
    if entry.get("versus") == "itself":
        return tuple((arm, arm) for arm in _listed(entry["arms"]))
    return tuple(product(_listed(entry["arms"]), _listed(entry["versus"]) if "versus" in entry else (None,)))


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]
