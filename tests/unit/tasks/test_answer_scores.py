"""Scores of answers, worked out by hand as the benchmarks define them."""

from __future__ import annotations

import pytest

from kvatlas.tasks.answer_scores import METRICS


@pytest.mark.parametrize(
    ("metric", "text", "answers", "score"),
    [
        ("all", " 1234567.", ["1234567"], 1.0),
        ("all", " 1234567, 7654321 and 1111111.", ["1234567", "7654321", "2222222", "3333333"], 0.5),
        ("all", "The words are Apple and PEAR", ["apple", "pear"], 1.0),
        ("all", "", ["apple"], 0.0),
        # The original looks for parts of words, and so does this.
        ("all", "12345678", ["1234567"], 1.0),
        ("all", "1. apple 2. apple", ["apple", "pear", "plum", "fig"], 0.25),
        ("contains", "It is the city of Paris.", ["London", "paris"], 1.0),
        ("contains", "Rome", ["London", "Paris"], 0.0),
        ("exact", " The Eiffel Tower.", ["eiffel tower"], 1.0),
        ("exact", "the tower of Eiffel", ["Eiffel tower"], 0.0),
        ("f1", "the cat sat on a mat", ["A cat on the mat!"], 2 * 3 / (4 + 3)),
        # A word counts as often as it is in both.
        ("f1", "very very good", ["very good"], 2 * 2 / (3 + 2)),
        ("f1", "Rome", ["Paris", "in Rome"], 2 * 1 / (1 + 2)),
        ("f1", "", ["Paris"], 0.0),
        ("f1", "The.", ["a"], 1.0),
        ("choice", " (B) because A is wrong", ["B"], 1.0),
        ("choice", "Because of A", ["B"], 0.0),
        ("last_number", "5 + 7 = 12, then 1,012.", ["1012"], 1.0),
        ("last_number", "1012 and 12", ["1012"], 0.0),
        ("last_number", "nothing", ["1012"], 0.0),
        ("choice", "none", ["B"], 0.0),
    ],
)
def test_a_score_is_that_of_the_original(metric: str, text: str, answers: list[str], score: float) -> None:
    assert METRICS[metric](text, answers) == score
