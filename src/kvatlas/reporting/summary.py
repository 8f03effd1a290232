"""What a run is, in a paragraph, and its headline findings: built from the data, nothing written by hand.

It must not know Markdown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW
from kvatlas.compression.methods import FULL
from kvatlas.grid.studies import all_studies
from kvatlas.reporting import evidence, labels
from kvatlas.reporting.ranking import with_interval
from kvatlas.reporting.study_rows import Record, rows_of

HEADLINES = 8

_SCORES = {"recall": "recalls", "accuracy": "answers"}
"""Metric of a study of prompts -> what the full cache does with them."""


def paragraph(results: Record) -> list[str]:
    """Return one sentence per model and study on what its full cache does, with n and clusters."""
    sentences = []
    for name, record in all_studies().items():
        for row in rows_of(results, name):
            if row.get("arm") == FULL and row.get("mode") != "no_context":
                sentences += list(_sentence(name, record.label, row))
    return sentences


def _sentence(name: str, label: str, row: Record) -> Iterator[str]:
    model, mode = labels.model_label(str(row["model"])), str(row.get("mode") or "")
    where = f"{label}, {labels.mode_label(mode)}" if mode in labels.MODE_LABELS else label
    if labels.known(row.get("ppl")):
        score = with_interval(labels.perplexity(row["ppl"]), labels.interval(row.get("ppl_ci"), places=2))
        yield f"{where}: the full cache of {model} has a perplexity of {score} on {row['n']:,} tokens."
        return
    for metric, does in _SCORES.items():
        if labels.known(row.get(metric)):
            score = with_interval(labels.percent(row[metric]), labels.interval(row.get(f"{metric}_ci"), scale=100))
            yield f"{where}: the full cache of {model} {does} {score} of {row['n']} prompts in {row['n_clusters']} clusters."
            return


@dataclass(frozen=True)
class Headline:
    """A finding as the page opens with it."""

    verdict: str
    sentence: str
    scope: str
    evidence: str


def headlines(results: Record) -> list[Headline]:
    """Return at most `HEADLINES` findings: decided claims on enough clusters to be more than a description.

    First those marked `headline` in the claims file, then what the data contradict, then the rest.
    """
    found = [
        claim
        for claim in evidence.judged(results)
        if evidence.decided(claim) and (claim.get("n_clusters") or 0) >= DESCRIPTIVE_BELOW
    ]
    ranked = sorted(found, key=lambda claim: (not claim.get("headline"), claim["verdict"] != "contradicted"))
    return [
        Headline(
            str(claim["verdict"]),
            str(claim["sentence"]),
            evidence.scope(results, claim),
            with_interval(*evidence.effect_text(claim)),
        )
        for claim in ranked[:HEADLINES]
    ]
