"""Tables of a recall study: aggregated rows to cells of text, in the published order of columns.

It must not know Markdown, HTML or where the numbers came from; templates turn a Table into a page and
escape its cells. Each row ends with the arm id, which selects its trials in trials.parquet and its cell
files in results.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvatlas.reporting import labels

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """One line of a table; a muted line is shown, but its numbers enter no comparison.

    `source` names the place of the page of cells that tells what the line was made from.
    """

    cells: tuple[str, ...]
    muted: bool = False
    source: str = ""


@dataclass(frozen=True)
class Table:
    """A table as text: names of the columns, which of them hold numbers (aligned right), and the lines."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    numeric: frozenset[int] = field(default_factory=frozenset)

    def __bool__(self) -> bool:
        """A table without lines is not shown."""
        return bool(self.rows)


def build(columns: Sequence[str], rows: Iterable[Row], *, words: Iterable[int] = (0,)) -> Table:
    """Make a table whose columns are numbers, except those listed in `words`."""
    text = frozenset(words)
    lines = tuple(rows)
    return Table(tuple(columns), lines, frozenset(place for place in range(len(columns)) if place not in text))


def source(study: str, row: Record) -> str:
    """Name the place of the page of cells where the cells of an arm stand."""
    return f"{study}-{row['model']}-{row['arm']}"


def section(results: Record, study: str, name: str, model: str, mode: str) -> list[Record]:
    """Return the rows of one section of a study for one model and question mode; empty when there are
    none.
    """
    rows = (results.get("studies", {}).get(study) or {}).get(name) or []
    return [row for row in rows if row.get("model") == model and row.get("mode") == mode]


def arms_of(results: Record, study: str, model: str, mode: str) -> list[Record]:
    """Return the arms of one model and mode in table order."""
    return sorted(section(results, study, "rows", model, mode), key=labels.arm_key)


def groups(results: Record, study: str) -> list[tuple[str, str]]:
    """List the (model, mode) pairs of a study, models by name and modes in their usual order, without the
    questions without context.
    """
    rows = (results.get("studies", {}).get(study) or {}).get("rows") or []
    order = list(labels.MODE_LABELS)
    pairs = {(str(row["model"]), str(row["mode"])) for row in rows if row["mode"] != "no_context"}
    return sorted(pairs, key=lambda p: (p[0], order.index(p[1]) if p[1] in order else len(order), p[1]))


def decode_speed(timings: Record, study: str, model: str, mode: str) -> dict[str, float]:
    """Map arm id to its decode speed in tokens/s, the median over its cells."""
    found: dict[str, list[float]] = {}
    for row in timings.get("rows") or []:
        same = (row.get("study"), row.get("model"), row.get("mode")) == (study, model, mode)
        if same and labels.known(row.get("decode_tokens_per_s")):
            found.setdefault(str(row["arm"]), []).append(float(row["decode_tokens_per_s"]))
    return {arm: median(values) for arm, values in found.items()}


def named(row: Record) -> tuple[str, str]:
    """Spell an arm in two cells: method (with its quantizer), budget."""
    bare = {**row, "budget": "none", "protection": "base"}
    name = labels.arm_label({**bare, "arm": ""}) if row["budget"] != "none" else labels.arm_label(row)
    return name, labels.budget_label(str(row["budget"])) + labels.protection_suffix(row)


def muted(row: Record) -> bool:
    """Say whether the row's task failed its gate."""
    return row.get("gate_passed") is False


def summary(results: Record, timings: Record, study: str, model: str, mode: str) -> Table:
    """Build the main table: the published columns in their order, then interval, actual ratio, KL, bytes,
    n and arm.
    """
    arms = arms_of(results, study, model, mode)
    speed = decode_speed(timings, study, model, mode)
    n = labels.spread(sorted({int(row["n"]) for row in arms}))
    columns = (
        "Method",
        "Ratio",
        "Mean KV (MiB)",
        f"NIAH recall (N = {n}) ± SE (published formula)",
        "Ref PPL (TF) ± SE",
        "Self PPL",
        "Embed CosSim",
        "Hidden CosSim",
        "Tok/s",
        "Recall, 95% interval",
        "Actual ratio",
        "KL",
        "Resident bytes",
        "Clusters",
        "Arm",
    )
    rows = []
    for arm in arms:
        size = arm.get("resident_bf16_mib")
        cells = (
            *named(arm),
            labels.fixed(arm.get("kv_mib") if size is None else size, 2),
            labels.percent_se(arm.get("recall"), arm.get("recall_se_published")),
            labels.perplexity(arm.get("ref_ppl"), arm.get("ref_ppl_se")),
            labels.perplexity(arm.get("self_ppl")),
            labels.fixed(arm.get("embed_cosine"), 4),
            labels.fixed(arm.get("hidden_cosine"), 4),
            labels.fixed(speed.get(str(arm["arm"])), 1),
            labels.interval(arm.get("recall_ci"), scale=100, unit="%"),
            labels.times(arm.get("actual_ratio")),
            labels.fixed(arm.get("kl"), 3),
            labels.fixed(_scaled(arm.get("kv_mib"), labels.MIB), 0),
            labels.fixed(arm.get("n_clusters"), 0),
            str(arm["arm"]),
        )
        rows.append(Row(cells, muted(arm), source(study, arm)))
    return build(columns, rows, words=(0, 14))


def by_depth(results: Record, study: str, model: str, mode: str) -> Table:
    """Build the recall-by-depth table, contexts pooled: share and hits out of n for each depth, then the
    total.
    """
    counts = {
        (row["arm"], row["depth"]): row
        for row in section(results, study, "by_depth", model, mode)
        if row["context"] == "all"
    }
    depths = sorted({depth for _, depth in counts})
    arms = arms_of(results, study, model, mode) if counts else []
    rows = []
    for arm in arms:
        cells = [_share(counts.get((arm["arm"], depth), {})) for depth in depths]
        rows.append(Row((*named(arm), *cells, _share(arm)), muted(arm), source(study, arm)))
    return build(("Method", "Ratio", *(f"{depth:g}% depth" for depth in depths), "Total hits"), rows)


def _share(row: Record) -> str:
    hits, n = row.get("hits"), row.get("n")
    return f"{labels.percent(hits / n)} ({labels.hits(hits, n)})" if labels.known(hits) and n else labels.DASH


def contrasts(results: Record, study: str, model: str, mode: str) -> Table:
    """Build the paired differences: recall to the full cache and to SnapKV, reference PPL to the full
    cache.
    """
    arms = arms_of(results, study, model, mode)
    by_arm = {row["arm"]: row for row in arms}
    found: dict[tuple[str, str, str], Record] = {}
    for row in section(results, study, "contrasts", model, mode):
        found[str(row["arm"]), _versus(row, by_arm), str(row["metric"])] = row
    columns = (
        "Method",
        "Ratio",
        "Recall against full (points)",
        "95% interval",
        "Holm p",
        "Recall against SnapKV (points)",
        "95% interval",
        "Holm p",
        "Ref PPL over full",
        "95% interval",
        "BH p",
        "Clusters",
    )
    rows = []
    for arm in arms:
        name = str(arm["arm"])
        full, snapkv = found.get((name, "full", "recall")), found.get((name, "snapkv", "recall"))
        nll = found.get((name, "full", "ref_nll"))
        if full is None and snapkv is None and nll is None:
            continue
        cells = (
            *named(arm),
            *_points(full),
            *_points(snapkv),
            *_ppl_ratio(nll),
            labels.fixed(arm.get("n_clusters"), 0),
        )
        rows.append(Row(cells, muted(arm), source(study, arm)))
    return build(columns, rows)


def _versus(row: Record, arms: Mapping[str, Record]) -> str:
    versus = str(row["versus"])
    if versus == row["arm"]:
        return "itself"
    other, arm = arms.get(versus), arms.get(str(row["arm"]))
    if other and arm and other["method"] == "snapkv" and other["budget"] == arm["budget"]:
        return "snapkv"
    return versus


def _points(row: Record | None) -> tuple[str, str, str]:
    row = row or {}
    return (
        labels.signed(_scaled(row.get("diff"), 100), 1),
        labels.interval(row.get("ci"), scale=100),
        labels.p_value(row.get("p_holm")),
    )


def _ppl_ratio(row: Record | None) -> tuple[str, str, str]:
    row = row or {}
    ratio = _exp(row.get("diff"))
    bounds = [_exp(bound) for bound in row.get("ci") or ()]
    return labels.times(ratio), labels.interval(bounds, places=2, unit="x"), labels.p_value(row.get("p_bh"))


def _scaled(value: Any, factor: float) -> float | None:
    return value * factor if labels.known(value) else None


def _exp(value: Any) -> float | None:
    return math.exp(value) if labels.known(value) and value < 700 else None


def retention(results: Record, study: str, model: str, mode: str) -> Table:
    """Build the table of needle slots kept, hits where the needle was kept whole, and hits among the full
    cache's hits.
    """
    columns = (
        "Method",
        "Ratio",
        "Needle slots kept",
        "Hits, needle kept whole",
        "95% interval",
        "Hits, full cache hit",
        "95% interval",
    )
    rows = [
        Row(
            (
                *named(arm),
                labels.percent(arm.get("needle_retained")),
                *_counts(arm.get("hit_given_retained")),
                *_counts(arm.get("recall_given_full")),
            ),
            muted(arm),
            source(study, arm),
        )
        for arm in arms_of(results, study, model, mode)
    ]
    return build(columns, rows)


def _counts(value: Record | None) -> tuple[str, str]:
    value = value or {}
    return labels.hits(value.get("k"), value.get("n")), labels.interval(value.get("ci"), scale=100, unit="%")


def ranges(results: Record, study: str, model: str, mode: str) -> list[str]:
    """Tell, budget by budget, the range of recall and of the perplexities over the unquantized arms."""
    plain = [row for row in arms_of(results, study, model, mode) if row.get("quantizer", "none") == "none"]
    lines = []
    for budget in dict.fromkeys(str(row["budget"]) for row in plain):
        rows = [row for row in plain if str(row["budget"]) == budget]
        parts = [
            f"{name} {_range([row.get(key) for row in rows], show)}"
            for key, name, show in (
                ("recall", "recall", labels.percent),
                ("ref_ppl", "reference PPL", labels.perplexity),
                ("self_ppl", "self PPL", labels.perplexity),
            )
        ]
        count = f"{len(rows)} arm{'s' if len(rows) > 1 else ''}"
        lines.append(f"{labels.budget_label(budget)} ({count}): {'; '.join(parts)}")
    return lines


def _range(values: Sequence[Any], show: Callable[[Any], str]) -> str:
    known = [value for value in values if labels.known(value)]
    if not known:
        return labels.DASH
    low, high = show(min(known)), show(max(known))
    return low if low == high else f"{low} to {high}"
