"""Claims about kvatlas.tasks.suite."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.errors import KvatlasError
from kvatlas.tasks.scoring import contains_answer
from kvatlas.tasks.suite import DEPTHS, make_prompts
from tests.support.prompts import TOKENIZER, text_of

CONTEXT = 900


def prompts_of(mode: str, context: int, instances: tuple[int, ...]) -> list[dict[str, Any]]:
    return make_prompts(TOKENIZER, mode=mode, context=context, instances=instances)


# No test changes a prompt, so those of one instance are made once.
@cache
def instance_prompts(instance: int, mode: str = "suite") -> list[dict[str, Any]]:
    return prompts_of(mode, CONTEXT, (instance,))


def prompts(*instances: int, mode: str = "suite") -> list[dict[str, Any]]:
    return [row for instance in instances or (0, 1) for row in instance_prompts(instance, mode)]


def without_span(prompt: dict[str, Any]) -> str:
    start, stop = prompt["span"]
    return text_of(prompt, 0, start) + text_of(prompt, stop)


def test_instance_zero_is_the_nine_published_tasks() -> None:
    rows = prompts(0)
    assert Counter(row["family"] for row in rows) == {"needle": 4, "multi_turn": 3, "instruction": 1, "summary": 1}
    assert [row["depth"] for row in rows if row["family"] == "needle"] == [5, 35, 65, 95]


def test_every_further_instance_has_one_prompt_per_cell() -> None:
    rows = prompts(1, 2, 3)
    assert Counter((row["family"], row["depth"]) for row in rows) == {
        **{("needle", depth): 3 for depth in DEPTHS},
        **{(family, None): 3 for family in ("multi_turn", "instruction", "summary")},
    }
    assert len({row["id"] for row in rows}) == len(rows)


@settings(max_examples=6, deadline=None)
@given(context=st.integers(750, 1600), instance=st.integers(0, 500), mode=st.sampled_from(["suite", "no_context"]))
def test_all_prompts_have_exactly_the_context_so_that_they_decode_as_one_batch(
    context: int, instance: int, mode: str
) -> None:
    for row in prompts_of(mode, context, (instance,)):
        assert len(row["ids"]) == context
        assert row["n_compress"] == context - 1


def test_the_answer_stands_in_the_load_bearing_span_and_nowhere_else() -> None:
    for row in prompts(*range(4)):
        assert contains_answer(text_of(row, *row["span"]), row["answer"])
        assert not contains_answer(without_span(row), row["answer"])


def test_the_floor_is_the_same_prompt_without_the_load_bearing_span() -> None:
    for full, no_context in zip(prompts(), prompts(mode="no_context"), strict=True):
        assert no_context["mode"] == "no_context"
        assert [no_context[key] for key in ("id", "answer", "span")] == [full[key] for key in ("id", "answer", "span")]
        assert without_span(no_context) == without_span(full)
        assert not contains_answer(text_of(no_context), no_context["answer"])


def test_a_multi_turn_rule_has_six_turns_of_chatter_behind_it() -> None:
    rows = [row for row in prompts() if row["family"] == "multi_turn"]
    assert len(rows) == 4
    for row in rows:
        after = text_of(row, row["span"][1])
        # Six turns of chatter, then the question; the turn that holds the rule began before the span's end.
        assert after.count("<|im_start|>user") == 6 + 1


def test_an_instruction_stands_in_the_system_prompt() -> None:
    for row in prompts():
        if row["family"] == "instruction":
            assert "<|im_start|>user" not in text_of(row, 0, row["span"][1])


def test_a_summary_s_detail_is_the_first_sentence_of_the_text() -> None:
    for row in prompts():
        if row["family"] == "summary":
            assert text_of(row, 0, row["span"][0]).endswith("Here is a text.")


def test_prompts_depend_on_nothing_but_their_context_and_instance() -> None:
    # Prompts made alone (and kept) against prompts made afresh, together.
    assert prompts_of("suite", CONTEXT, (0, 1)) == prompts(0) + prompts(1)


def test_answers_differ_between_instances() -> None:
    rows = [row for row in prompts(*range(4)) if row["family"] != "summary"]
    assert len({row["answer"] for row in rows}) == len(rows)


def test_the_question_never_holds_the_answer() -> None:
    for row in prompts(*range(4)):
        assert not contains_answer(row["text"], row["answer"])


def test_an_unknown_mode_and_a_short_context_are_clear_errors() -> None:
    with pytest.raises(KvatlasError, match="modes: unknown 'aware'; choose one of suite, no_context"):
        prompts_of("aware", CONTEXT, (0,))
    with pytest.raises(KvatlasError, match=r"contexts?: 80 tokens are too few"):
        prompts_of("suite", 80, (0,))
