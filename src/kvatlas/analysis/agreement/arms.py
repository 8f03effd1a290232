"""Two runs of the same arm: its trials paired, what changed between them, and whether that is more than chance.

Numbers that were computed twice differ in their last bits, and a bit can flip an answer. Where nothing else is different,
a flip goes either way with the same chance, whatever the prompt: so flips are tested by an exact sign test over prompts
(or tokens), McNemar's, and shifts of a loss by one over its prompts or blocks. Knows reports; knows no page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from kvatlas.analysis.agreement.report import Report, Row
from kvatlas.analysis.statistics.multiplicity import ALPHA, holm
from kvatlas.analysis.statistics.paired_tests import BLOCK_TOKENS
from kvatlas.errors import KvatlasError

TOLERANCE = 0.01
"""The shift that two runs may have: nats per token (1% of perplexity), or a share of a measurement."""

Key = tuple[Any, ...]
Floats = NDArray[np.float64]
Table = tuple[str, tuple[str, ...], tuple[str, ...], Callable[[list[tuple[Row, Row]]], dict[str, Any]]]


def compare(first: Report, second: Report) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Compare every arm that both reports have; return a row per arm, and the arms that only one of them has.

    A row has `n` (paired prompts, tokens or measurements), `equal` (how many are the same in every bit; outputs, of
    prompts), `gained` and `lost` hits, `largest` (the largest difference of a loss, nats, or of a measurement, relative),
    `shift` (its mean, or the median of relative differences), `p_hits` and `p_shift`, both also after Holm's correction
    over the tests of all arms, and `differs`.

    Raises KvatlasError when the reports have no trial in common, or one name stands for two prompts.
    """
    rows: list[dict[str, Any]] = []
    only: dict[str, list[str]] = {"first": [], "second": []}
    for kind, ids, same, measure in _TABLES:
        sides = [_by_arm(getattr(report, kind), ids) for report in (first, second)]
        for arm in sorted({*sides[0], *sides[1]}, key=str):
            pairs = _paired(arm, sides[0].get(arm, {}), sides[1].get(arm, {}), same)
            if pairs:
                rows.append(dict(zip(_ARM, arm, strict=True)) | {"kind": kind} | measure(pairs))
            else:
                present = "first" if arm in sides[0] else "second"
                only[present].append(" ".join(str(part) for part in arm if part))
    if not rows:
        raise KvatlasError(f"{first.name} and {second.name}: no trial of one is in the other; compare runs of one grid")
    _judge(rows)
    return rows, only


_ARM = ("study", "model", "arm", "variant")
_VARIANT = {"answers": "mode", "streams": "protocol", "measurements": "granularity"}


def _by_arm(rows: Iterable[Row], ids: Sequence[str]) -> dict[Key, dict[Key, Row]]:
    """Group rows by arm and, inside, by what identifies a row of the arm."""
    variant = next(name for name in _VARIANT.values() if name in ids)
    arms: dict[Key, dict[Key, Row]] = {}
    for row in rows:
        arm = (row["study"], row["model"], row["arm"], row[variant] or "")
        arms.setdefault(arm, {})[tuple(row[name] for name in ids)] = row
    return arms


def _paired(
    arm: Key, first: Mapping[Key, Row], second: Mapping[Key, Row], same: Sequence[str]
) -> list[tuple[Row, Row]]:
    """Pair the rows that both have. Raises KvatlasError where a pair was not asked the same."""
    pairs = [(row, second[key]) for key, row in first.items() if key in second]
    for one, other in pairs:
        for name in same:
            if one[name] != other[name]:
                raise KvatlasError(
                    f"{' '.join(str(part) for part in arm)}, {one['id']}: {name} is {one[name]!r} in one report and "
                    f"{other[name]!r} in the other; they are not of the same prompts and cannot be compared"
                )
    return pairs


def _answers(pairs: list[tuple[Row, Row]]) -> dict[str, Any]:
    equal = sum(one["output_ids"] == other["output_ids"] for one, other in pairs)
    losses = [_difference(one["gold_nlls"] or (), other["gold_nlls"] or ()) for one, other in pairs]
    return _counted([(one["hit"], other["hit"]) for one, other in pairs], equal) | _shifted(losses)


def _streams(pairs: list[tuple[Row, Row]]) -> dict[str, Any]:
    differences = [_difference(one["nlls"], other["nlls"]) for one, other in pairs]
    hits = [pair for one, other in pairs for pair in zip(one["hits"], other["hits"], strict=True)]
    equal = sum(int(np.sum(difference == 0)) for difference in differences)
    blocks = [part for d in differences for part in np.split(d, range(BLOCK_TOKENS, d.size, BLOCK_TOKENS))]
    return _counted(hits, equal) | _shifted(blocks)


def _measurements(pairs: list[tuple[Row, Row]]) -> dict[str, Any]:
    values = np.asarray([(one["value"], other["value"]) for one, other in pairs], dtype=float)
    largest = np.abs(values).max(axis=1)
    relative = np.divide(values[:, 1] - values[:, 0], largest, out=np.zeros(len(values)), where=largest > 0)
    return {
        **_counted([], int(np.sum(relative == 0))),
        "n": len(pairs),
        "largest": float(np.abs(relative).max()),
        "shift": float(np.median(relative)),
        "p_shift": _sign_test(relative),
    }


_TABLES: tuple[Table, ...] = (
    ("answers", ("study", "model", "arm", "mode", "id"), ("question", "answer", "prompt_tokens"), _answers),
    ("streams", ("study", "model", "arm", "protocol", "id"), ("tokens", "block", "passages"), _streams),
    (
        "measurements",
        ("study", "model", "arm", "granularity", "id", "metric", "layer", "head"),
        (),
        _measurements,
    ),
)


def _difference(first: Sequence[float | None], second: Sequence[float | None]) -> Floats:
    """Return second - first of the tokens that are scored; raises KvatlasError where not the same tokens are."""
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    if one.shape != other.shape or (np.isnan(one) != np.isnan(other)).any():
        raise KvatlasError(
            f"losses of {np.sum(~np.isnan(one))} tokens stand beside losses of {np.sum(~np.isnan(other))}, or of others; "
            "the reports are not of the same texts and cannot be compared"
        )
    difference: Floats = (other - one)[~np.isnan(one)]
    return difference


def _counted(hits: Sequence[tuple[bool, bool]], equal: int) -> dict[str, Any]:
    """Count flips; the exact two-sided sign test over those that flipped is McNemar's."""
    gained = sum(other and not one for one, other in hits)
    lost = sum(one and not other for one, other in hits)
    p = float(stats.binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return {"n": len(hits), "equal": equal, "gained": gained, "lost": lost, "p_hits": p}


def _shifted(differences: Sequence[Floats]) -> dict[str, Any]:
    """Describe differences of per-token losses; each array is one unit of the test."""
    means = np.asarray([difference.mean() for difference in differences if difference.size])
    largest = max((float(np.abs(difference).max()) for difference in differences if difference.size), default=0.0)
    return {"largest": largest, "shift": float(means.mean()) if means.size else 0.0, "p_shift": _sign_test(means)}


def _sign_test(differences: Floats) -> float:
    above, below = int(np.sum(differences > 0)), int(np.sum(differences < 0))
    return float(stats.binomtest(above, above + below).pvalue) if above + below else 1.0


def _judge(rows: list[dict[str, Any]]) -> None:
    """Correct the p-values of the comparison together, and say which arms differ by more than chance and tolerance.

    Where nothing changed there is nothing to test, and the number of changes says nothing of their direction: such
    tests are not counted.
    """
    for row in rows:
        row.update(p_hits_holm=1.0, p_shift_holm=1.0)
    tests = [(row, "p_hits") for row in rows if row["gained"] + row["lost"]]
    tests += [(row, "p_shift") for row in rows if row["largest"] > 0]
    for (row, name), value in zip(tests, holm([row[name] for row, name in tests]), strict=True):
        row[f"{name}_holm"] = value
    for row in rows:
        shifted = row["p_shift_holm"] < ALPHA and abs(row["shift"]) > TOLERANCE
        row["differs"] = row["p_hits_holm"] < ALPHA or shifted
