"""Claims about kvatlas.tasks.scoring."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvatlas.tasks.scoring import contains_answer, normalise


@pytest.mark.parametrize(
    ("text", "answer", "hit"),
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
        ("the Crimson\n  Falcon sailed", "crimson falcon", True),
        ("", "4821", False),
        # Scripts without spaces, emphasis, separated thousands, and the end of a sentence.
        ("密码是12345。", "12345", True),
        ("コードは12345です", "12345", True),
        ("암호는 12345입니다", "12345", True),
        ("รหัสคือ12345ครับ", "12345", True),
        ("パスワードはQZT-4821です", "QZT-4821", True),
        ("код12345", "12345", False),
        ("é12345", "12345", False),
        ("_12345_", "12345", True),
        ("**12345**", "12345", True),
        ("`QZT-4821`", "QZT-4821", True),
        ("a_12345", "12345", False),
        ("12345_b", "12345", False),
        ("12,345", "12345", True),
        ("It is 1,234,567.", "1234567", True),
        ("12'345", "12345", True),
        ("12\u202f345", "12345", True),
        ("12,345,678", "12345", False),
        ("12,345", "345", False),
        ("112,345", "12345", False),
        ("1,2345", "12345", False),
        ("12.345", "12345", False),
        ("It is 12345.", "12345", True),
        ("It is 12345.Then", "12345", True),
        ("12345, and 6", "12345", True),
        ("12345,67890", "12345", True),
        ("12345.67", "12345", False),
        ("12345,67", "12345", False),
        ("3.12345", "12345", False),
        ("12,345.67", "12345", False),
        ("12345%", "12345", True),
        ("code:12345", "12345", True),
        ("(12345)", "12345", True),
        ("- 12345", "12345", True),
        ("12345's", "12345", True),
        ("12345²", "12345", True),
        # Longer codes, and other forms of the same characters.
        ("X-QZT-4821", "QZT-4821", False),
        ("QZT-4821-77", "QZT-4821", False),
        ("QZT-4821 - that is it", "QZT-4821", True),
        ("QZT-4821--that is it", "QZT-4821", True),
        ("QZT-4821/QZT-4822", "QZT-4821", True),
        ("QZT\u20114821", "QZT-4821", True),
        ("QZT\u22124821", "QZT-4821", True),
        ("ＱＺＴ－４８２１", "QZT-4821", True),
        ("１２３４５", "12345", True),
        ("123\u200b45", "12345", True),
        ("QZT_4821", "QZT-4821", False),
        ("a crimson falcon-like bird", "crimson falcon", True),
        ("crimson falcons", "crimson falcon", False),
    ],
)
def test_containment_ignores_case_and_white_space_but_not_word_boundaries(text: str, answer: str, hit: bool) -> None:
    assert contains_answer(text, answer) is hit


@given(st.text(), st.from_regex(r"[A-Z]{3}-[0-9]{4}", fullmatch=True), st.text())
def test_an_answer_set_off_by_spaces_is_always_found(before: str, code: str, after: str) -> None:
    assert contains_answer(f"{before} {code.lower()} {after}", code)


@given(st.from_regex(r"[0-9]{5}", fullmatch=True), st.from_regex(r"[0-9a-z]{1,3}", fullmatch=True))
def test_a_longer_number_or_word_never_counts_as_its_part(number: str, more: str) -> None:
    assert not contains_answer(number + more, number)
    assert not contains_answer(more + number, number)


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_normalising_leaves_no_white_space_but_single_spaces(text: str) -> None:
    normal = normalise(text)
    assert normal.split(" ") == normal.split() or normal == ""
    assert normalise(normal) == normal
