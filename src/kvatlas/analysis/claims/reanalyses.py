"""Published conclusions beside the same conclusions with one defect of their study mended.

Knows the list `reanalyses` of config/claims.yaml and the verdicts on claims; knows no numbers. The source studies read
their means as they are, so the reading of the means stands beside the verdict of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvatlas.analysis.claims import claim_file
from kvatlas.analysis.claims.verdicts import CONTRADICTED, NOT_RUN, SUPPORTED
from kvatlas.errors import KvatlasError
from kvatlas.schemas.messages import closest

REVERSED, NO_LONGER_SHOWN, STANDS = "reversed", "no longer shown", "stands"

Row = dict[str, Any]


@dataclass(frozen=True)
class Reanalysis:
    """What a reanalysis changes, and the ids of the claims before and after."""

    change: str
    published: str
    reanalysed: str


def load(path: Path | str) -> list[Reanalysis]:
    """Read the reanalyses of a claims file. Raises KvatlasError that names the entry and the key that is wrong."""
    content = claim_file.read(path)
    ids = {claim["id"] for claim in content["claims"]}
    entries = content.get("reanalyses") or []
    for index, entry in enumerate(entries):
        for key in ("published", "reanalysed"):
            if entry[key] not in ids:
                hint = closest(entry[key], ids)
                raise KvatlasError(f"{path}: reanalyses[{index}].{key}: {entry[key]!r} is not the id of a claim{hint}")
    return [Reanalysis(**entry) for entry in entries]


def evaluate(reanalyses: Sequence[Reanalysis], verdicts: Sequence[Row]) -> list[Row]:
    """Return a row per reanalysis and model: both claims with their verdicts, and what becomes of the conclusion.

    `outcome`: the conclusion is what the means say about the published claim. It "stands" when the reanalysed claim is
    decided the same way, is "reversed" when it is decided the other way, and is "no longer shown" when it is not
    resolved. In results.json the reanalysed claim's id has the key `corrected`.
    """
    by_id: dict[str, dict[Any, Row]] = {}
    for row in verdicts:
        by_id.setdefault(row["id"], {})[row["model"]] = row
    rows = []
    for reanalysis in reanalyses:
        before, after = by_id.get(reanalysis.published, {}), by_id.get(reanalysis.reanalysed, {})
        for model in sorted(set(before) & set(after), key=str):
            rows.append(
                {"model": model, "source_title": before[model]["source_title"], "study": before[model]["study"]}
                | {"change": reanalysis.change, "published": reanalysis.published, "corrected": reanalysis.reanalysed}
                | {"outcome": outcome(before[model], after[model])}
            )
    return rows


def outcome(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what becomes of the conclusion that the means suggest for the published claim."""
    if NOT_RUN in (before["verdict"], after["verdict"]):
        return NOT_RUN
    if after["verdict"] not in (SUPPORTED, CONTRADICTED):
        return NO_LONGER_SHOWN
    return STANDS if (after["verdict"] == SUPPORTED) == before["by_means"] else REVERSED
