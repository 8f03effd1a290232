"""Claims about kvatlas.tasks.passkey; what it shares with the needle task is tested there."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.tasks import words
from kvatlas.tasks.passkey import make_prompts
from tests.support.prompts import CORPUS, TOKENIZER, text_of

BASE: dict[str, Any] = {
    "mode": "aware",
    "context": 900,
    "seeds": [0, 1, 2],
    "depths": None,
    "haystack": "noise",
    "corpus": CORPUS,
}


def prompts(**changes: Any) -> list[dict[str, Any]]:
    return make_prompts(TOKENIZER, **(BASE | changes))


@settings(max_examples=15, deadline=None)
@given(
    context=st.integers(600, 1500),
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["aware", "agnostic", "reuse"]),
    haystack=st.sampled_from(["noise", "sentences", "corpus"]),
)
def test_a_prompt_has_exactly_the_context_and_its_span_is_the_fact(
    context: int, seed: int, mode: str, haystack: str
) -> None:
    (prompt,) = prompts(context=context, seeds=[seed], mode=mode, haystack=haystack)
    assert len(prompt["ids"]) == context
    assert text_of(prompt, *prompt["span"]).count(prompt["answer"]) == 2
    start, stop = prompt["span"]
    assert prompt["answer"] not in text_of(prompt, 0, start) + text_of(prompt, stop)


@pytest.mark.parametrize("haystack", ["noise", "sentences"])
def test_sixteen_thousand_tokens_and_more_are_exact(haystack: str) -> None:
    for context in (16_384, 20_001):
        (prompt,) = prompts(context=context, seeds=[7], haystack=haystack)
        assert len(prompt["ids"]) == context


def test_noise_is_the_five_sentences_over_and_over() -> None:
    (prompt,) = prompts(depths=[100], seeds=[4])
    before = text_of(prompt, 0, prompt["span"][0])
    start = min(before.index(sentence) for sentence in words.NOISE)
    hay = before[start:]
    turn = next(number for number, sentence in enumerate(words.NOISE) if hay.startswith(sentence))
    order = words.NOISE[turn:] + words.NOISE[:turn]
    assert " ".join(order * 40).startswith(hay)
    assert hay.count(words.NOISE[0]) > 3


def test_depths_are_drawn_per_seed_when_none_are_given_and_used_when_they_are() -> None:
    drawn = prompts(seeds=range(12))
    assert len(drawn) == 12
    assert len({row["depth"] for row in drawn}) > 5
    assert all(0 <= row["depth"] <= 100 for row in drawn)
    assert drawn == prompts(seeds=range(12))
    assert [row["depth"] for row in prompts(depths=[20, 80])] == [20, 80] * 3


@pytest.mark.parametrize("mode", ["aware", "agnostic", "reuse", "no_context"])
def test_all_prompts_of_a_file_line_up(mode: str) -> None:
    rows = prompts(mode=mode, seeds=range(8))
    assert len({(len(row["ids"]), row["n_compress"]) for row in rows}) == 1
    assert len({row["answer"] for row in rows}) == 8


def test_aware_and_agnostic_share_their_tokens() -> None:
    for aware, agnostic in zip(prompts(), prompts(mode="agnostic"), strict=True):
        assert aware["ids"] == agnostic["ids"]
        assert agnostic["n_compress"] < aware["n_compress"] == len(aware["ids"]) - 1


def test_reuse_asks_for_the_locker_number_first() -> None:
    for row in prompts(mode="reuse"):
        compressed, rest = text_of(row, 0, row["n_compress"]), text_of(row, row["n_compress"])
        assert "What is the locker number" in compressed
        assert row["text"] not in compressed
        assert row["text"] in rest
        assert row["answer"] not in rest


def test_the_floor_has_the_question_without_the_number() -> None:
    for row in prompts(mode="no_context"):
        assert row["span"] is None
        assert row["text"] in text_of(row)
        assert row["answer"] not in text_of(row)
