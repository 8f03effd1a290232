"""Published conclusions beside the same conclusions with one defect of their study mended.

Knows the list `reanalyses` of config/claims.yaml and the verdicts on claims; knows no numbers. The source studies read
their means as they are, so the reading of the means stands beside the verdict of the tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims.verdicts import CONTRADICTED, NOT_RUN, SUPPORTED
from kvatlas.errors import KvatlasError

KEYS = ("change", "published", "corrected")
REVERSED, NO_LONGER_SHOWN, STANDS, UNTOLD = "reversed", "no longer shown", "stands", "not run"

Row = dict[str, Any]


@dataclass(frozen=True)
class Reanalysis:
    """What was mended, and the ids of the claims before and after."""

    change: str
    published: str
    corrected: str


def load(path: Path | str) -> list[Reanalysis]:
    """Read the reanalyses of a claims file. Raises KvatlasError that names the entry and the key that is wrong."""
    known = {claim.id for claim in claim_files.load(path)}
    content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    found = []
    for number, entry in enumerate(content.get("reanalyses") or [], start=1):
        where = f"{path}: reanalysis {number}"
        if not isinstance(entry, dict) or set(entry) != set(KEYS):
            raise KvatlasError(f"{where}: needs exactly the keys {', '.join(KEYS)}")
        for key in KEYS[1:]:
            if entry[key] not in known:
                raise KvatlasError(f"{where}: {key} {entry[key]!r} is not the id of a claim")
        found.append(Reanalysis(**entry))
    return found


def evaluate(reanalyses: Sequence[Reanalysis], verdicts: Sequence[Row]) -> list[Row]:
    """Return a row per reanalysis and model: both claims with their verdicts, and what becomes of the conclusion.

    `outcome`: the conclusion is what the means of the published setting say. It "stands" when the corrected claim is
    decided the same way, is "reversed" when it is decided the other way, and is "no longer shown" when it is not
    resolved.
    """
    by_id: dict[str, dict[Any, Row]] = {}
    for row in verdicts:
        by_id.setdefault(row["id"], {})[row["model"]] = row
    rows = []
    for reanalysis in reanalyses:
        before, after = by_id.get(reanalysis.published, {}), by_id.get(reanalysis.corrected, {})
        for model in sorted(set(before) & set(after), key=str):
            rows.append(
                {"model": model, "source_title": before[model]["source_title"], "study": before[model]["study"]}
                | {"change": reanalysis.change, "published": reanalysis.published, "corrected": reanalysis.corrected}
                | {"outcome": outcome(before[model], after[model])}
            )
    return rows


def outcome(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Say what becomes of the conclusion that the means of the published setting suggest."""
    if NOT_RUN in (before["verdict"], after["verdict"]):
        return UNTOLD
    if after["verdict"] not in (SUPPORTED, CONTRADICTED):
        return NO_LONGER_SHOWN
    return STANDS if (after["verdict"] == SUPPORTED) == before["by_means"] else REVERSED
