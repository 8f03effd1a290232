"""Which method at this ratio: the arms of one budget by what they recall, beside the caches that evict nothing.

What an interval of the difference to the full cache says is spelled in one word, the same in all studies. It must not know
Markdown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW
from kvatlas.analysis.studies.validity import is_repeat
from kvatlas.compression.methods import FULL, split_variant
from kvatlas.reporting import labels, tables
from kvatlas.reporting.study_rows import Record, arms_of, groups, rows_of
from kvatlas.reporting.tables import Row, Table, build

MARGIN = 0.05
"""A loss that is called small, as a share of the prompts."""
WITHIN, WORSE, BETTER, OPEN = f"within {100 * MARGIN:.0f} points", "worse", "better", "open"
FEW, FAILED = "descriptive", "not compared"
FIRST_MODE = "aware"
"""The question mode with which a report's first page opens."""

CAVEATS = {
    "pinned_emeans": "pins rare tokens, and a code is rare: its recall here is that of codes, not of ordinary text",
    "snapkv": "hears the question through its observation window; without it (question-agnostic) it cannot",
}
"""What to know before a method's number is used."""

COLUMNS = (
    "Method",
    "Actual ratio",
    "KV (MiB)",
    "Recall (95% interval)",
    "Against full, points (95% interval)",
    "Reading",
    "Ref PPL",
    "Prompts / haystacks",
)


@dataclass(frozen=True)
class Ranking:
    """The arms of one model, question mode and budget, by recall."""

    heading: str
    mode: str
    table: Table


def rankings(results: Record, study: str) -> list[Ranking]:
    """Build a ranking per model, question mode and budget of a recall study.

    Each also holds the full cache and its quantized versions: they are what else can be had for those bytes.
    """
    found = []
    for model, mode in groups(results, study):
        arms = [arm for arm in arms_of(results, study, model, mode) if not is_repeat(arm)]
        whole = [arm for arm in arms if arm["budget"] == "none"]
        for budget in dict.fromkeys(str(arm["budget"]) for arm in arms if arm["budget"] != "none"):
            chosen = whole + [arm for arm in arms if arm["budget"] == budget]
            heading = f"{labels.model_label(model)}, {labels.mode_label(mode)}, {labels.budget_label(budget)}"
            ranked = table(results, study, model, mode, sorted(chosen, key=by_recall))
            found.append(Ranking(heading, mode, ranked))
    return found


def table(results: Record, study: str, model: str, mode: str, arms: Iterable[Record]) -> Table:
    """Build a table of recall of some arms of one model and mode, in the order in which they come."""
    against = differences(results, study, model, mode)
    rows = []
    for arm in arms:
        contrast = against.get(str(arm["arm"]))
        cells = (
            labels.arm_label(arm),
            labels.times(arm.get("actual_ratio")),
            labels.fixed(arm.get("resident_bf16_mib"), 2),
            with_interval(labels.percent(arm.get("recall")), labels.interval(arm.get("recall_ci"), scale=100)),
            against_full(contrast),
            FAILED if tables.muted(arm) else reading(contrast),
            labels.perplexity(arm.get("ref_ppl")),
            f"{arm['n']} / {arm['n_clusters']}",
        )
        rows.append(Row(cells, tables.muted(arm), tables.source(study, arm)))
    return build(COLUMNS, rows, words=(0, 5))


def by_recall(arm: Record) -> tuple[Any, ...]:
    """Sort key of an arm: the highest recall first, ties by size."""
    return -(arm["recall"] or 0.0), arm["resident_bf16_mib"] or 0.0, labels.arm_key(arm)


def differences(
    results: Record, study: str, model: str, mode: str | None, metric: str = "recall"
) -> Mapping[str, Record]:
    """Map arm id to its paired difference to the full cache."""
    rows = rows_of(results, study, "contrasts", model=model, mode=mode)
    return {
        str(row["arm"]): row for row in rows if (row["versus"], row["metric"]) == (FULL, metric) and row["arm"] != FULL
    }


def caveats(results: Record, study: str) -> list[str]:
    """List what to know of the methods of a study before their numbers are used, one line each."""
    named = dict.fromkeys(split_variant(str(row["method"]))[0] for row in rows_of(results, study))
    return [f"{labels.method_label(method)} {CAVEATS[method]}." for method in CAVEATS if method in named]


def with_interval(value: str, interval: str) -> str:
    """Spell a number with its interval in brackets: "57.5% (37.3 to 76.0)"."""
    return value if interval == labels.DASH else f"{value} ({interval})"


def against_full(contrast: Record | None) -> str:
    """Spell a paired difference of shares in points, with its interval."""
    if contrast is None:
        return labels.DASH
    return with_interval(tables.points(contrast["diff"]), labels.interval(contrast.get("ci"), scale=100))


def reading(contrast: Record | None) -> str:
    """Say in a word what the 95% interval of a difference to the full cache shows."""
    if contrast is None:
        return labels.DASH
    if contrast["n_clusters"] < DESCRIPTIVE_BELOW:
        return FEW
    if contrast.get("gate_passed") is False:
        return FAILED
    if not contrast.get("ci"):
        return OPEN
    low, high = contrast["ci"]
    return BETTER if low > 0 else WITHIN if low > -MARGIN else WORSE if high < 0 else OPEN


def legend() -> dict[str, Any]:
    """Return the words of `reading` and their meaning, for the pages."""
    return {
        "within": WITHIN,
        "margin": f"{100 * MARGIN:.0f}",
        "worse": WORSE,
        "open": OPEN,
        "few": FEW,
        "below": DESCRIPTIVE_BELOW,
    }
