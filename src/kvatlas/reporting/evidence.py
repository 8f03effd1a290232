"""What a run says about the claims: the verdict table, and statements grouped by topic.

Like `tables`, it knows no Markdown; claims arrive with their verdicts and are never judged here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from kvatlas.reporting import labels
from kvatlas.reporting.study_rows import Record, rows_of
from kvatlas.reporting.tables import Row, Table, build

VERDICTS = ("supported", "contradicted", "not resolved", "not run")
DECIDED, UNDECIDED, NOT_RUN = VERDICTS[:2], VERDICTS[2:3], VERDICTS[3:]
_OTHER_TOPIC = "Further claims"


@dataclass(frozen=True)
class Statement:
    """A claim as a page shows it: its verdict, its sentence, and the evidence in numbers."""

    verdict: str
    sentence: str
    evidence: str
    source: str
    model: str


def claims(results: Record, verdicts: Collection[str]) -> Table:
    """Build the table of all that is known of the claims with some verdicts, one line per claim and model."""
    columns = (
        "Model",
        "Claim",
        "Source",
        "Verdict",
        "Effect",
        "95% interval",
        "Adjusted p",
        "Clusters",
        "Clusters needed",
        "Deciding part",
    )
    rows = []
    for claim in judged(results):
        if claim["verdict"] not in verdicts:
            continue
        effect, bounds = effect_text(claim)
        cells = (
            labels.model_label(str(claim["model"])),
            str(claim["sentence"]),
            str(claim.get("source_title") or claim["source"]),
            str(claim["verdict"]),
            effect,
            bounds,
            labels.p_value(claim.get("p_adjusted")),
            labels.fixed(claim.get("n_clusters"), 0),
            labels.clusters_needed(claim.get("n_needed")),
            str(claim.get("decided_by") or claim.get("reason") or labels.DASH),
        )
        rows.append(Row(cells, claim["verdict"] == "not run"))
    return build(columns, rows, words=(0, 1, 2, 3, 9))


def decided_claims(results: Record) -> Table:
    """Build the claims that the trials decide, in few columns; a verdict names its model where there are several.

    What holds by arithmetic, without clusters, is left to the full table.
    """
    claims = [claim for claim in judged(results) if decided(claim) and labels.known(claim.get("n_clusters"))]
    models = {claim["model"] for claim in claims}
    rows = []
    for claim in claims:
        model = f" on {labels.model_label(str(claim['model']))}" if len(models) > 1 else ""
        effect, bounds = effect_text(claim)
        shown = effect if bounds == labels.DASH else f"{effect} ({bounds})"
        clusters = labels.fixed(claim.get("n_clusters"), 0)
        rows.append(Row((str(claim["sentence"]), f"{claim['verdict']}{model}", shown, clusters, str(claim["source"]))))
    return build(("Claim", "Verdict", "Effect (95% interval)", "Clusters", "Source"), rows, words=(0, 1, 4))


def sources(results: Record) -> list[tuple[str, str]]:
    """List the keys of the sources of the judged claims with their titles."""
    return sorted({str(claim["source"]): str(claim.get("source_title") or "") for claim in judged(results)}.items())


def decided(claim: Record) -> bool:
    """Return whether a claim's test decided it, for or against."""
    return claim["verdict"] in DECIDED


def scope(results: Record, claim: Record) -> str:
    """Say what a verdict is about: the model, the lengths of its study's prompts or streams, and the clusters."""
    rows = rows_of(results, str(claim["study"]), model=str(claim["model"]), mode=claim.get("mode"))
    contexts = sorted(
        {length for row in rows for length in row.get("contexts") or [row.get("context") or row.get("tokens")]}
    )
    lengths = f"{' and '.join(f'{length:,}' for length in contexts)} tokens" if all(contexts) and contexts else ""
    clusters = f"{claim['n_clusters']} clusters" if labels.known(claim.get("n_clusters")) else ""
    return ", ".join(filter(None, (labels.model_label(str(claim["model"])), lengths, clusters)))


def judged(results: Record) -> list[Record]:
    """Return the claims on studies of this run, in the order of the claims file."""
    studies = results.get("studies") or {}
    return [claim for claim in results.get("claims") or [] if claim.get("study") in studies and claim.get("model")]


def untested(results: Record) -> list[tuple[str, int]]:
    """Count the claims on studies that this run does not have, by study."""
    studies = results.get("studies") or {}
    missing = {(claim["study"], claim["id"]) for claim in results.get("claims") or [] if claim["study"] not in studies}
    return sorted(Counter(study for study, _ in missing).items())


def undecided(results: Record) -> list[tuple[str, int]]:
    """Count the claims that this run does not resolve, by study."""
    counts = Counter(str(claim["study"]) for claim in judged(results) if claim["verdict"] in UNDECIDED)
    return [(study.replace("_", " "), count) for study, count in sorted(counts.items())]


def not_run(results: Record) -> list[tuple[str, int]]:
    """Count the claims that this run lacks an arm, a model or a study for, by study."""
    counts = Counter(str(claim["study"]) for claim in judged(results) if claim["verdict"] == "not run") + Counter(
        dict(untested(results))
    )
    return [(study.replace("_", " "), count) for study, count in sorted(counts.items())]


def verdict_counts(results: Record) -> list[tuple[str, int]]:
    """Count the claims on studies of this run by verdict, in a fixed order."""
    counts = Counter(str(claim["verdict"]) for claim in judged(results))
    return [(verdict, counts[verdict]) for verdict in VERDICTS if counts[verdict]]


def effect_text(claim: Record) -> tuple[str, str]:
    """Spell a claim's effect and interval in the reader's unit: points, a PPL ratio, or the metric's own."""
    effect, bounds, metric = claim.get("effect"), claim.get("ci"), str(claim.get("metric"))
    if not labels.known(effect):
        return labels.DASH, labels.DASH
    if metric.endswith("_nll") or metric == "nll":
        ratios = [math.exp(bound) for bound in bounds or ()]
        return f"PPL {labels.times(math.exp(float(effect or 0)))}", labels.interval(ratios, places=2, unit="x")
    share = metric.startswith(("recall", "accuracy", "kv_share")) or metric in ("ref_top1", "saved_share")
    alone = claim.get("test") in ("level", "value")
    if share and alone:
        return labels.percent(effect), labels.interval(bounds, scale=100, unit="%")
    if share:
        return labels.signed(100 * float(effect or 0), 1, " points"), labels.interval(bounds, scale=100)
    return labels.fixed(effect, 3) if alone else labels.signed(effect, 3), labels.interval(bounds, places=3)


def statements(results: Record, study: str) -> list[tuple[str, list[Statement]]]:
    """Group the claims of one study under their topics; topics without a claim are left out.

    Topics are in the order of `results["topics"]`, claims without one last; inside a topic claims keep their order.
    """
    by_topic: dict[str, list[Statement]] = {title: [] for title in results.get("topics") or ()}
    others: list[Statement] = []
    for claim in judged(results):
        if claim["study"] == study:
            topic = claim.get("topic")
            (others if topic is None else by_topic.setdefault(topic, [])).append(_statement(claim))
    return [(title, members) for title, members in (*by_topic.items(), (_OTHER_TOPIC, others)) if members]


def _statement(claim: Record) -> Statement:
    effect, bounds = effect_text(claim)
    parts = []
    if effect != labels.DASH:
        parts.append(f"effect {effect}" + (f", 95% interval {bounds}" if bounds != labels.DASH else ""))
    if labels.known(claim.get("p_adjusted")):
        shown = labels.p_value(claim["p_adjusted"])
        parts.append(f"adjusted p {shown if shown.startswith('<') else '= ' + shown}")
    if labels.known(claim.get("n_clusters")):
        parts.append(f"{claim['n_clusters']} clusters")
    if claim.get("decided_by"):
        parts.append(f"deciding part {claim['decided_by']}")
    if labels.known(claim.get("n_needed")):
        parts.append(f"{labels.clusters_needed(claim['n_needed'])} clusters would settle it")
    if claim.get("reason"):
        parts.append(str(claim["reason"]))
    return Statement(
        verdict=str(claim["verdict"]),
        sentence=str(claim["sentence"]),
        evidence="; ".join(parts),
        source=str(claim.get("source_title") or claim["source"]),
        model=labels.model_label(str(claim["model"])),
    )
