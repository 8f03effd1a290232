"""The claims file: what it may say, and how patterns become arms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.analysis.claims import claim_file, judge, verdicts
from kvatlas.errors import KvatlasError
from kvatlas.schemas import reader
from tests.support.places import CLAIMS_FILE

CLAIMS = claim_file.load(CLAIMS_FILE)


def claim(**keys: Any) -> claim_file.Claim:
    base = {"id": "c", "sentence": "A beats B.", "source": "own", "source_title": "this project", "study": "needle"}
    rest = {"mode": "aware", "metric": "recall", "test": "superiority", "contrasts": (("a-4x", "b-4x"),)}
    return claim_file.Claim(**(base | rest | keys))


def test_budgets_expand_to_arm_ids_and_any_means_those_with_all_arms() -> None:
    item = claim(contrasts=(("a-{budget}", "b-{budget}"),), budgets=("4x", "50%", "256"))
    assert item.parts(()) == [("a-4x", "b-4x"), ("a-50pct", "b-50pct"), ("a-256slots", "b-256slots")]
    item = claim(contrasts=(("a-{budget}", "b-{budget}"), ("a-{budget}", "full")), budgets=("any",))
    arms = ("full", "full-int8", "a-4x", "b-4x", "a-256slots", "b-256slots", "a-8x", "b-4x-int8")
    assert item.parts(arms) == [
        ("a-256slots", "b-256slots"),
        ("a-256slots", "full"),
        ("a-4x", "b-4x"),
        ("a-4x", "full"),
    ]


def test_the_old_name_of_the_reanalyses_is_refused_with_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    path.write_text("sources: {own: this project}\nclaims: []\ncorrections: []\n")
    with pytest.raises(KvatlasError, match="corrections: unknown key; `corrections` is called `reanalyses` now"):
        claim_file.load(path)


def test_a_topic_is_a_title_in_the_rows_and_titles_are_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    entry = {"id": "x", "sentence": "A.", "source": "own", "study": "needle", "metric": "recall", "test": "level"}
    claims = [entry | {"arms": ["a"]}, entry | {"id": "y", "arms": ["a"], "topic": "end"}]
    topics = {"start": "The start", "end": "The end"}
    content = {"sources": {"own": "this project"}, "topics": topics, "claims": claims}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert claim_file.topics(path) == ["The start", "The end"]
    assert [row["topic"] for row in judge.evaluate(claim_file.load(path), {"studies": {}})] == [None, "The end"]


def test_the_schema_allows_the_tests_that_are_judged() -> None:
    schema = reader.load_schema("claims")
    tests = schema["$defs"]["claim"]["properties"]["test"]["enum"]
    assert tests == [*verdicts.CONTRAST_TESTS, *verdicts.LEVEL_TESTS]


def test_budgets_of_a_run_are_found_by_the_whole_pattern() -> None:
    item = claim(contrasts=(("a-{budget}-fair", "full"),), budgets=("any",))
    assert item.parts(("full", "a-4x", "a-8x-fair", "b-2x-fair", "a-16x-int8-fair")) == [("a-8x-fair", "full")]


def test_the_file_covers_the_three_studies_and_our_own_claims() -> None:
    assert {item.source for item in CLAIMS} == {"geometric", "l2kv", "kvstudy", "own"}
    studies = {"needle", "passkey", "online_lm", "attention_loss", "task_suite", "quantizer_error"}
    assert {item.study for item in CLAIMS} == studies
    assert all(item.sentence.endswith(".") for item in CLAIMS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sentence": ""}, r"\.sentence: \'\' is not valid; a text that is not empty"),
        ({"metrics": "recall"}, r"\.metrics: unknown key; did you mean 'metric'\?"),
        ({"test": "superior"}, r"\.test: 'superior' is not allowed; did you mean 'superiority'\?"),
        ({"source": "nobody"}, r"\.source: 'nobody' is not one of own"),
        ({"topic": "nothing"}, r"\.topic: 'nothing' is not one of none; add it to `topics`"),
        ({"mode": "floor"}, r"\.mode: 'floor' is not allowed; `floor` is called `no_context` now"),
        ({"versus": [4]}, r"\.versus\[0\]: 4 is not a text"),
        ({"budgets": [256]}, r"\.budgets\[0\]: 256 is not a text; a budget is a quoted text"),
        ({"test": "equivalence"}, "needs `margin` above zero"),
        ({"target": 3}, "`target` belongs to test value"),
        ({"versus": None, "drop": "versus"}, "needs `versus` or `pairs`"),
        ({"pairs": [["a", "b"]]}, "either `arms`"),
        ({"test": "level"}, "takes arms alone"),
        ({"margin": "five"}, r"\.margin: 'five' is not a number"),
    ],
)
def test_a_mistake_in_the_file_names_the_claim_and_the_key(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    entry = {"id": "x", "sentence": "A beats B.", "source": "own", "study": "needle", "metric": "recall"}
    entry |= {"test": "superiority", "arms": ["a"], "versus": ["b"]}
    drop = change.pop("drop", None) if "drop" in change else None
    entry |= change
    entry.pop(drop, None)
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump({"sources": {"own": "this project"}, "claims": [entry]}))
    with pytest.raises(KvatlasError, match=message) as caught:
        claim_file.load(path)
    assert str(caught.value).startswith(f"{path}: claims[x]")


def test_a_missing_broken_or_repeating_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "claims.yaml"
    with pytest.raises(KvatlasError, match="no such file"):
        claim_file.load(path)
    for text, message in (("claims: [", "not valid YAML"), ("claims: []", "sources: this key is missing")):
        path.write_text(text)
        with pytest.raises(KvatlasError, match=message):
            claim_file.load(path)
    content = yaml.safe_load(CLAIMS_FILE.read_text())
    content["claims"].append(content["claims"][0])
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(KvatlasError, match=r"claims\[[a-z-]+\]\.id: this id is used twice"):
        claim_file.load(path)
