"""Claims as data: read config/claims.yaml, say which contrasts it needs, and give each claim a verdict per model.

A claim is a predicate on results.json, never on trials; it knows sections, not studies. What a section must
offer:

* `contrasts`: rows {model, arm, versus, metric, diff, ci [lo, hi] or null, p, n_clusters}, `diff` = arm
  minus versus in the metric's unit; optional: mode (prompt tasks), se, df (else from ci and n_clusters -
  1), gate_passed (false: recall is not compared).
* `rows`: one per (model[, mode], arm) with the metrics as fields and their 95% intervals as `<metric>_ci`.

Metrics of the sections (arms: cells' arm ids; NLLs in nats per token, so that exp(diff) is a PPL ratio;
shares in [0, 1]):

* needle, passkey (`analysis.studies.needle`): recall, ref_nll, self_nll, gold_nll, ref_kl, ref_top1, embed_cosine,
  hidden_cosine, recall_last_minus_first_depth (arm = versus), recall_interaction (versus "additive");
  passkey `rows` also saved_share.
* online_lm (`analysis.studies.online_lm`): nll (cumulative), post_nll (after the budget binds), accuracy, post_accuracy;
  blocks of 64 tokens of the one stream are the clusters.
* attention_loss: alr and alr_kv of L2Compress; arms "layers_0_1", "layers_19_21_29" and versus "other_layers"; prompts are
  the clusters.
* task_suite: accuracy, accuracy_needle, accuracy_instruction, accuracy_multi_turn, accuracy_summary,
  accuracy_last_minus_first_depth, accuracy_interaction, single_forward_nll; `rows` also kv_share (bytes
  over the fp32 full cache's); task instances are the clusters.
* quantizer_error: arms are quantizers; key_l1, value_l1 (relative error, sum|e| / sum|x|); `rows` also
  bits_per_value, head_dim.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas.analysis.claims import verdicts
from kvatlas.analysis.claims.claim_file import Claim, known, load
from kvatlas.analysis.claims.verdicts import Part
from kvatlas.analysis.statistics import multiplicity
from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW
from kvatlas.analysis.statistics.multiplicity import ALPHA, PRIMARY
from kvatlas.analysis.studies.clusters import METRICS, RECALL_METRICS
from kvatlas.analysis.studies.recall_contrasts import Pair

__all__ = ["Claim", "evaluate", "load", "pairs"]


Row = dict[str, Any]

_CLAIM_FIELDS = (
    *("id", "sentence", "source", "source_title", "topic", "study", "mode"),
    *("metric", "test", "direction", "margin", "target", "family", "headline"),
)


def pairs(
    claims: Iterable[Claim], study: str, arms: Collection[str], metrics: Collection[str] = tuple(METRICS)
) -> list[Pair]:
    """Return the contrasts on `metrics` that claims on `study` need of these arms: the option `pairs` of a study."""
    wanted: dict[Pair, None] = {}
    for claim in claims:
        if claim.study != study or claim.test not in verdicts.CONTRAST_TESTS or claim.metric not in metrics:
            continue
        for arm, versus in claim.parts(arms):
            if versus is not None and known((arm, versus), arms):
                wanted[Pair(arm, versus, claim.metric, claim.mode)] = None
    return list(wanted)


def evaluate(claims: Sequence[Claim], results: Mapping[str, Any], *, alpha: float = ALPHA) -> list[Row]:
    """Return one row per claim and model: verdict, effect, ci, p, p_adjusted, n_clusters, n_needed, reason, parts.

    `by_means` is what the means alone say of all parts.
    `effect` and `ci` are those of the deciding part. `p_adjusted` is Holm's over the primary claims of a
    model and study, Benjamini and Hochberg's over its other claims; it decides the verdict.
    """
    studies: Mapping[str, Any] = results["studies"]
    everyone = sorted({row["model"] for section in studies.values() for row in section.get("rows", ())})
    sizes = Counter((claim.study, claim.family) for claim in claims)
    judged = [
        _judge(claim, model, studies.get(claim.study), _level(claim, sizes, alpha))
        for claim in claims
        for model in (claim.models or everyone or (None,))
    ]
    families: dict[tuple[Any, ...], list[_Judged]] = {}
    for item in judged:
        if item.p is not None:
            families.setdefault((item.model, item.claim.study, item.claim.family), []).append(item)
    adjusted: dict[int, float] = {}
    for (_, _, family), members in families.items():
        values = multiplicity.adjusted([item.p for item in members if item.p is not None], family)
        adjusted.update((id(item), value) for item, value in zip(members, values, strict=True))
    return [_verdict_row(item, adjusted.get(id(item)), alpha) for item in judged]


@dataclass(frozen=True, eq=False)
class _Judged:
    """A claim weighed on one model: its parts, or the reason why it has none."""

    claim: Claim
    model: str | None
    parts: tuple[Part, ...] = ()
    missing: str = ""
    gate: str = ""

    @property
    def p(self) -> float | None:
        p_for, p_against = verdicts.claim_p(self.parts) if self.parts and not self.gate else (None, None)
        return None if p_for is None or p_against is None else min(p_for, p_against)


def _level(claim: Claim, sizes: Mapping[tuple[str, str], int], alpha: float) -> float:
    """Return the level at which Holm rejects the smallest p of a family, for primary claims; `alpha` for the rest."""
    return alpha / sizes[claim.study, claim.family] if claim.family == PRIMARY else alpha


def _judge(claim: Claim, model: str | None, section: Mapping[str, Any] | None, alpha: float) -> _Judged:
    if section is None or model is None:
        return _Judged(claim, model, missing=f"study {claim.study} was not run")
    rows = [row for row in section.get("rows", ()) if _matches(row, claim, model)]
    if not rows:
        mode = f" in mode {claim.mode}" if claim.mode else ""
        extra = "".join(f", {key} {value}" for key, value in claim.where)
        return _Judged(claim, model, missing=f"model {model}{extra} was not run{mode}")
    wanted = claim.parts({row["arm"] for row in rows})
    if not wanted:
        return _Judged(claim, model, missing="no budget at which all its arms were run")
    on_rows = claim.test in verdicts.LEVEL_TESTS
    table = {row["arm"]: row for row in rows} if on_rows else _contrast_table(section, claim, model)
    evidence = [(pair, table.get(pair[0] if on_rows else pair)) for pair in wanted]
    missing = [_name(pair) for pair, row in evidence if row is None or (on_rows and row.get(claim.metric) is None)]
    if missing:
        return _Judged(claim, model, missing=f"not in this run: {', '.join(missing)}")
    gated = any(row is not None and not _past_gate(row, claim.metric) for _, row in evidence)
    judged_by_hits = claim.metric in RECALL_METRICS or claim.metric.partition("_")[0] == "accuracy"
    gate = "the task is not past its gate" if gated and judged_by_hits else ""
    parts = tuple(_part(claim, pair, row, alpha) for pair, row in evidence if row is not None)
    return _Judged(claim, model, parts, gate=gate)


def _past_gate(row: Row, metric: str) -> bool:
    """Whether the row's task is one that the full cache masters; a family of tasks has a gate of its own."""
    families: Mapping[str, bool] = row.get("family_gates_passed", {})
    return families.get(metric.removeprefix("accuracy_"), row.get("gate_passed")) is not False


def _contrast_table(section: Mapping[str, Any], claim: Claim, model: str) -> dict[Any, Row]:
    return {
        (row["arm"], row["versus"]): row
        for row in section.get("contrasts", ())
        if row["model"] == model
        and row["metric"] == claim.metric
        and (claim.mode is None or row.get("mode") == claim.mode)
    }


def _part(claim: Claim, pair: tuple[str, str | None], row: Row, alpha: float) -> Part:
    name = _name(pair)
    if claim.test == "level":
        return verdicts.judge_level(row, claim.metric, direction=claim.direction, bound=claim.margin, name=name)
    if claim.target is not None:
        return verdicts.judge_value(row, claim.metric, target=claim.target, tolerance=claim.margin, name=name)
    return verdicts.judge_contrast(
        row, claim.test, direction=claim.direction, margin=claim.margin, name=name, alpha=alpha
    )


def _verdict_row(item: _Judged, p_adjusted: float | None, alpha: float) -> Row:
    claim = item.claim
    row: Row = {key: getattr(claim, key) for key in _CLAIM_FIELDS} | {
        "model": item.model,
        "reason": item.missing or item.gate,
    }
    row["parts"] = [part.as_row() for part in item.parts]
    blank = dict.fromkeys(("effect", "ci", "p", "p_adjusted", "n_clusters", "n_needed", "decided_by"))
    if not item.parts:
        return row | blank | {"verdict": verdicts.NOT_RUN, "by_means": None, "descriptive": False}
    decisive = verdicts.weakest(item.parts)
    counts = [part.n_clusters for part in item.parts if part.n_clusters is not None]
    verdict = verdicts.NOT_RESOLVED if item.gate else _decide(item, p_adjusted, alpha)
    unsettled = [part for part in item.parts if not part.interval_for] or list(item.parts)
    needs = [max(part.n_needed, (part.n_clusters or 0) + 1) for part in unsettled if part.n_needed]
    return row | {
        "verdict": verdict,
        "by_means": all(part.by_means for part in item.parts),
        "effect": decisive.effect,
        "ci": None if decisive.ci is None else list(decisive.ci),
        "decided_by": decisive.name,
        "p": item.p,
        "p_adjusted": p_adjusted,
        "n_clusters": min(counts, default=None),
        "n_needed": max(needs, default=None) if verdict == verdicts.NOT_RESOLVED else None,
        "descriptive": bool(counts) and min(counts) < DESCRIPTIVE_BELOW,
    }


def _decide(item: _Judged, p_adjusted: float | None, alpha: float) -> str:
    p_for, p_against = verdicts.claim_p(item.parts)
    if p_for is None or p_against is None:
        return verdicts.decide(item.parts, None, None, alpha)
    # The smaller p is the one that was adjusted; the other side cannot be what the data say.
    towards = p_for <= p_against
    return verdicts.decide(item.parts, p_adjusted if towards else 1.0, 1.0 if towards else p_adjusted, alpha)


def _matches(row: Mapping[str, Any], claim: Claim, model: str) -> bool:
    return (
        row["model"] == model
        and (claim.mode is None or row.get("mode") == claim.mode)
        and all(row.get(key) == value for key, value in claim.where)
    )


def _name(pair: tuple[str, str | None]) -> str:
    arm, versus = pair
    return arm if versus is None or versus == arm else f"{arm} vs {versus}"
