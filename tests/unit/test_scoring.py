"""Claims about kvatlas.tasks.scoring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.errors import KvatlasError
from kvatlas.tasks.scoring import contains, evaluate, is_hit, normalise, up_to_stop


@pytest.mark.parametrize(
    ("output", "expected", "hit"),
    [
        ("The code is QZT-4821.", "QZT-4821", True),
        ("the code is qzt-4821", "QZT-4821", True),
        ('"QZT-4821"', "QZT-4821", True),
        ("QZT-48210", "QZT-4821", False),
        ("AQZT-4821", "QZT-4821", False),
        ("QZT - 4821", "QZT-4821", False),
        ("The number is 4821!", "4821", True),
        ("The number is 48210", "4821", False),
        ("The number is 14821", "4821", False),
        ("Captain\n  Zorvex, hello", "captain zorvex", True),
        ("", "4821", False),
    ],
)
def test_containment_ignores_case_and_white_space_but_not_word_boundaries(
    output: str, expected: str, hit: bool
) -> None:
    assert contains(output, expected) is hit


@given(st.text(), st.from_regex(r"[A-Z]{3}-[0-9]{4}", fullmatch=True), st.text())
def test_an_answer_set_off_by_spaces_is_always_found(before: str, code: str, after: str) -> None:
    assert contains(f"{before} {code.lower()} {after}", code)


@given(st.text())
def test_normalising_twice_changes_nothing_for_ascii_or_not(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)


@pytest.mark.parametrize(
    ("rule", "expected", "output", "hit"),
    [
        ("starts_with", "AHOY", '"Ahoy, friend', True),
        ("starts_with", "AHOY", "Ahoyer, friend", False),
        ("starts_with", "AHOY", "Say ahoy", False),
        ("ends_with", "banana", "Paris. BANANA!", True),
        ("ends_with", "banana", "A banana a day", False),
        ("ends_with", "nana", "banana", False),
        ("equals", "COBALT", " Cobalt. ", True),
        ("equals", "COBALT", "Cobalt blue", False),
        ("equals", "COBALT", "cobalt or cobalt", False),
        ("not_contains", "sorry", "I am glad", True),
        ("not_contains", "sorry", "Sorry!", False),
        ("contains", ["Quorlam", "lantern"], "A lantern in Quorlam", True),
        ("contains", ["Quorlam", "lantern"], "A lantern", False),
    ],
)
def test_rules_are_data(rule: str, expected: object, output: str, hit: bool) -> None:
    assert evaluate({"rule": rule, "expected": expected}, output) is hit


@pytest.mark.parametrize(
    "scoring", [{"rule": "sounds_like", "expected": "x"}, {"expected": "x"}, {"rule": "contains", "expected": []}]
)
def test_an_unknown_rule_or_an_empty_expectation_is_a_clear_error(scoring: dict[str, object]) -> None:
    with pytest.raises(KvatlasError, match=r"rule: unknown|expected: "):
        evaluate(scoring, "anything")


def test_an_empty_answer_is_an_error_because_it_would_match_everything() -> None:
    with pytest.raises(KvatlasError, match="empty answer"):
        contains("anything", " ")


def test_a_prompt_is_scored_by_its_rule_when_it_has_one_and_by_containment_otherwise() -> None:
    assert is_hit({"answer": "4821"}, "it is 4821")
    prompt = {"answer": "4821", "scoring": {"rule": "starts_with", "expected": "4821"}}
    assert not is_hit(prompt, "it is 4821")


def test_trimming_keeps_or_drops_the_first_stop_token() -> None:
    assert up_to_stop([5, 6, 2, 7, 2], {2}) == [5, 6, 2]
    assert up_to_stop([5, 6, 2, 7, 2], {2}, keep_stop=False) == [5, 6]
    assert up_to_stop([5, 6], {2}) == [5, 6]
    assert up_to_stop([], {2}) == []
