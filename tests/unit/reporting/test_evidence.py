"""Claims on the page: every one that was judged has a line and a statement, with its effect in the reader's unit."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.reporting import evidence, labels
from tests.support.table_columns import column


def test_every_claim_of_a_study_that_was_run_has_a_line_and_a_statement(needle_results: dict[str, Any]) -> None:
    claims = [claim for claim in needle_results["claims"] if claim["study"] == "needle"]
    table = evidence.claims(needle_results, evidence.VERDICTS)
    assert column(table, "Claim") == [claim["sentence"] for claim in claims]
    assert column(table, "Verdict") == [claim["verdict"] for claim in claims]
    said = [item.sentence for _, items in evidence.statements(needle_results, "needle") for item in items]
    assert sorted(said) == sorted(claim["sentence"] for claim in claims)
    assert sum(count for _, count in evidence.verdict_counts(needle_results)) == len(claims)
    assert dict(evidence.untested(needle_results)).keys() == {c["study"] for c in needle_results["claims"]} - {"needle"}


def test_statements_stand_under_their_topics_in_the_order_of_the_page(needle_results: dict[str, Any]) -> None:
    topic_of = {claim["sentence"]: claim["topic"] for claim in needle_results["claims"]}
    grouped = evidence.statements(needle_results, "needle")
    assert [title for title, _ in grouped] == [*needle_results["topics"], "Further claims"]
    for title, items in grouped:
        assert {topic_of[item.sentence] or "Further claims" for item in items} == {title}


@pytest.mark.parametrize(
    ("claim", "effect", "bounds"),
    [
        (
            {"metric": "recall", "test": "superiority", "effect": 0.125, "ci": [-0.05, 0.3]},
            "+12.5 points",
            "−5.0 to 30.0",
        ),
        (
            {"metric": "ref_nll", "test": "superiority", "effect": 0.0, "ci": [0.0, 0.0]},
            "PPL 1.00x",
            "1.00 to 1.00x",
        ),
        ({"metric": "recall", "test": "level", "effect": 0.04, "ci": [0.0, 0.1]}, "4.0%", "0.0 to 10.0%"),
        ({"metric": "embed_cosine", "test": "superiority", "effect": 0.1, "ci": None}, "+0.100", labels.DASH),
        ({"metric": "recall", "test": "level", "effect": None, "ci": None}, labels.DASH, labels.DASH),
    ],
)
def test_effects_are_told_in_the_readers_unit(claim: dict[str, Any], effect: str, bounds: str) -> None:
    assert evidence.effect_text(claim) == (effect, bounds)
