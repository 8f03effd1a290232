"""The page of a comparison of two reports: what differs in how they were made, then arms, claims and aggregates.

Knows the record that `kvatlas.analysis.agreement.comparison` returns; computes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvatlas.analysis.agreement.comparison import AGREE
from kvatlas.files import write_json, write_text
from kvatlas.paths import COMPARISON
from kvatlas.reporting import environment, labels
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.tables import Row, Table, build

PAGE, DATA = COMPARISON
_MOST = 40  # lines of settings on the page; all of them are in the data
_SETTINGS = {
    "config": "configuration",
    "claim_file": "file of claims",
    "models": "models",
    "code": "code",
    "packages": "packages",
    "hardware": "hardware",
}


def write(comparison: Record, folder: Path) -> list[Path]:
    """Write the page and the data of a comparison into `folder`; return both paths."""
    page = environment.markdown().get_template("comparison.md.j2").render(_context(comparison))
    write_text(folder / PAGE, page)
    write_json(folder / DATA, comparison)
    return [folder / PAGE, folder / DATA]


def summary(comparison: Record) -> list[str]:
    """Say in a few lines whether the reports agree, for a terminal."""
    arms, claims, aggregates = comparison["arms"], comparison["claims"], comparison["aggregates"]
    differing = [_arm(row) for row in arms if row["differs"]]
    kinds = [f"{len(rows)} in {_SETTINGS[kind]}" for kind, rows in comparison["settings"].items() if rows]
    flips = sum(row["gained"] + row["lost"] for row in _answers(arms))
    return [
        f"settings that differ: {', '.join(kinds) or 'none'}",
        f"arms: {len(arms)} compared, {len(differing)} differ by more than chance{_colon(differing)}",
        f"answers: {sum(row['equal'] for row in _answers(arms))} of {sum(row['n'] for row in _answers(arms))} outputs "
        f"are equal, {flips} hits flipped",
        f"aggregates: {aggregates['inside']} of {aggregates['n']} lie in each other's interval",
        f"claims: {len(claims['changed'])} of {claims['n']} verdicts differ"
        f"{_colon([claim['id'] for claim in claims['changed']])}",
        f"verdict: {'the reports agree' if comparison['verdict'] == AGREE else 'the reports differ'}",
    ]


def _context(comparison: Record) -> dict[str, Any]:
    arms = comparison["arms"]
    return {
        "first": comparison["first"],
        "second": comparison["second"],
        "summary": summary(comparison),
        "tolerance": f"{comparison['tolerance']:.0%}",
        "settings": _settings(comparison["settings"]),
        "left_out": sum(max(0, len(rows) - _MOST) for rows in comparison["settings"].values()),
        "differing": _arms([row for row in arms if row["differs"]]),
        "arms": _arms([row for row in arms if not row["differs"]]),
        "only": comparison["only"],
        "claims": _claims(comparison["claims"]["changed"]),
        "aggregates": _aggregates(comparison["aggregates"]["outside"]),
    }


def _answers(arms: Sequence[Record]) -> list[Record]:
    return [row for row in arms if row["kind"] == "answers"]


def _colon(names: Sequence[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def _arm(row: Record) -> str:
    return ", ".join(str(row[key]) for key in ("study", "model", "arm", "variant") if row[key])


def _settings(settings: Record) -> Table:
    rows = [
        Row((_SETTINGS[kind], item["key"], item["first"], item["second"]))
        for kind, items in settings.items()
        for item in items[:_MOST]
    ]
    return build(("Part", "Key", "First", "Second"), rows, words=range(4))


def _arms(rows: Sequence[Record]) -> Table:
    columns = ("Arm", "n", "Equal", "Hits gained", "Hits lost", "Largest difference", "Shift", "p (Holm)")
    return build(columns, [Row(_arm_cells(row)) for row in rows])


def _arm_cells(row: Record) -> tuple[str, ...]:
    counted = row["kind"] != "measurements"
    return (
        _arm(row),
        str(row["n"]),
        str(row["equal"]),
        str(row["gained"]) if counted else labels.DASH,
        str(row["lost"]) if counted else labels.DASH,
        f"{row['largest']:.2g}",
        f"{row['shift']:+.2g}",
        f"{min(row['p_hits_holm'], row['p_shift_holm']):.2g}",
    )


def _claims(changed: Sequence[Record]) -> Table:
    rows = [Row((c["id"], str(c["model"]), _verdict(c, "first"), _verdict(c, "second"))) for c in changed]
    return build(("Claim", "Model", "First", "Second"), rows, words=range(4))


def _verdict(claim: Record, side: str) -> str:
    effect = claim[f"{side}_effect"]
    return f"{claim[f'{side}_verdict']}" + (f" (effect {effect:+.3g})" if labels.known(effect) else "")


def _aggregates(outside: Sequence[Record]) -> Table:
    rows = [
        Row((_place(row), row["metric"], *(_estimate(row, side) for side in ("first", "second")))) for row in outside
    ]
    return build(("Arm", "Aggregate", "First", "Second"), rows, words=(0, 1))


def _place(row: Record) -> str:
    known = ("study", "model", "arm", "mode", "context", "protocol", "granularity", "text", "queries")
    return ", ".join(str(row[key]) for key in known if row.get(key) is not None)


def _estimate(row: Record, side: str) -> str:
    low, high = row[f"{side}_ci"]
    return f"{row[side]:.4g} [{low:.4g}, {high:.4g}]"
