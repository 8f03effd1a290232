"""Reanalyses: published conclusions beside the reanalysed ones, and what becomes of them."""

from __future__ import annotations

import pytest

from kvatlas.analysis.claims import claim_file, reanalyses
from kvatlas.analysis.claims.reanalyses import NO_LONGER_SHOWN, REVERSED, STANDS, Reanalysis
from kvatlas.analysis.claims.verdicts import NOT_RUN
from kvatlas.errors import KvatlasError
from kvatlas.paths import CLAIMS_FILE
from kvatlas.reporting import reproduction

CLAIM = (
    "  - {{id: {}, sentence: S, source: s, study: needle, metric: recall, test: superiority, arms: [a], versus: [b]}}\n"
)


def verdict(name: str, model: str = "m", **fields: object) -> dict[str, object]:
    row = {"id": name, "model": model, "verdict": "supported", "by_means": True, "source_title": "S", "study": "needle"}
    more = {
        "source": "s",
        "sentence": name,
        "metric": "recall",
        "test": "superiority",
        "effect": 0.25,
        "ci": [0.1, 0.4],
    }
    return row | more | fields


@pytest.mark.parametrize(
    ("by_means", "after", "expected"),
    [
        (True, "supported", STANDS),
        (True, "contradicted", REVERSED),
        (True, "not resolved", NO_LONGER_SHOWN),
        (False, "contradicted", STANDS),
        (False, "supported", REVERSED),
        (None, "not run", NOT_RUN),
    ],
)
def test_a_conclusion_read_from_means_meets_the_verdict_on_the_reanalysed_one(by_means, after, expected):
    before = verdict("a", by_means=by_means)
    assert reanalyses.outcome(before, verdict("b", verdict=after)) == expected


def test_a_published_conclusion_that_was_not_run_has_no_outcome():
    assert reanalyses.outcome(verdict("a", verdict="not run", by_means=None), verdict("b")) == NOT_RUN


def test_reanalyses_are_reported_for_each_model_that_has_both_claims():
    pair = [Reanalysis("changed", "a", "b")]
    rows = reanalyses.evaluate(pair, [verdict("a"), verdict("b"), verdict("a", "other"), verdict("c")])
    assert [(row["model"], row["published"], row["corrected"], row["outcome"]) for row in rows] == [
        ("m", "a", "b", STANDS)
    ]


def test_the_reanalyses_of_the_repository_mend_claims_of_a_source_study_in_the_same_study():
    claims = {claim.id: claim for claim in claim_file.load(CLAIMS_FILE)}
    pairs = reanalyses.load(CLAIMS_FILE)
    assert {claims[pair.published].source for pair in pairs} == {"geometric", "l2kv", "kvstudy"}
    for pair in pairs:
        assert claims[pair.published].study == claims[pair.reanalysed].study
        assert claims[pair.reanalysed].source == "own"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{change: x, published: a}", r"reanalyses\[0\]\.reanalysed: this key is missing"),
        ("{change: x, published: a, reanalysed: b, more: c}", r"reanalyses\[0\]\.more: unknown key"),
        (
            "{change: x, published: a, corrected: b}",
            r"reanalyses\[0\]\.corrected: .*`corrected` is called `reanalysed` now",
        ),
        ("{change: x, published: a, reanalysed: z}", r"reanalyses\[0\]\.reanalysed: 'z' is not the id of a claim"),
    ],
)
def test_a_wrong_reanalysis_is_named_with_its_key(tmp_path, entry, message):
    path = tmp_path / "claims.yaml"
    path.write_text(f"sources: {{s: S}}\nclaims:\n{CLAIM.format('a')}{CLAIM.format('b')}reanalyses:\n  - {entry}\n")
    with pytest.raises(KvatlasError, match=message):
        reanalyses.load(path)


def test_the_table_shows_both_verdicts_and_the_outcome():
    claims = [verdict("a"), verdict("b", verdict="contradicted", effect=-0.2, ci=[-0.3, -0.1])]
    pairs = reanalyses.evaluate([Reanalysis("changed", "a", "b")], claims)
    table = reproduction.reanalyses({"studies": {"needle": {}}, "claims": claims, "reanalyses": pairs})
    (line,) = table.rows
    assert line.cells[:7] == ("m", "S", "a", "yes", "supported", "changed", "b")
    assert line.cells[7:] == ("−20.0 points", "−30.0 to −10.0", "contradicted", REVERSED)


def test_claims_read_by_means_are_counted_with_their_verdicts():
    claims = [
        verdict("a"),
        verdict("b", verdict="not resolved"),
        verdict("c", by_means=False),
        verdict("d", source="own"),
    ]
    counts = reproduction.read_by_means({"studies": {"needle": {}}, "claims": claims})
    assert (counts["claims"], counts["holding"]) == ("3", "2")
    assert (counts["supported"], counts["contradicted"], counts["not_resolved"]) == ("1", "0", "1")
