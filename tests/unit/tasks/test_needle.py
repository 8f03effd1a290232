"""Claims about kvatlas.tasks.needle, and the layout of a fact in a haystack that it shares with the passkey task."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.errors import KvatlasError
from kvatlas.tasks.needle import make_prompts
from tests.support.prompts import CORPUS, TOKENIZER, text_of

CONTEXT = 900
DEPTHS = [10, 50, 90]
BASE: dict[str, Any] = {
    "mode": "aware",
    "context": CONTEXT,
    "seeds": [0, 1],
    "depths": DEPTHS,
    "haystack": "sentences",
    "corpus": None,
}


def prompts(**changes: Any) -> list[dict[str, Any]]:
    return make_prompts(TOKENIZER, **(BASE | changes))


@settings(max_examples=15, deadline=None)
@given(
    context=st.integers(700, 1500),
    seed=st.integers(0, 10_000),
    depth=st.integers(0, 100),
    mode=st.sampled_from(["aware", "agnostic", "reuse"]),
    haystack=st.sampled_from(["sentences", "noise", "corpus"]),
)
def test_a_prompt_has_exactly_the_context_and_its_span_is_the_needle(
    context: int, seed: int, depth: int, mode: str, haystack: str
) -> None:
    (prompt,) = prompts(context=context, seeds=[seed], depths=[depth], mode=mode, haystack=haystack, corpus=CORPUS)
    assert len(prompt["ids"]) == context
    needle = text_of(prompt, *prompt["span"])
    assert re.fullmatch(rf" The access code of the \w+ \w+ is {prompt['answer']}\.", needle)
    assert 0 < prompt["span"][1] <= prompt["n_compress"] < context


@pytest.mark.parametrize("mode", ["aware", "agnostic", "reuse", "no_context"])
def test_all_prompts_of_a_file_line_up(mode: str) -> None:
    rows = prompts(mode=mode, seeds=range(4))
    assert len(rows) == 4 * len(DEPTHS)
    assert len({(len(row["ids"]), row["n_compress"]) for row in rows}) == 1
    assert len({len(row["answer_ids"]) for row in rows}) == 1


def test_the_same_arguments_give_the_same_prompts_whatever_else_is_in_the_file() -> None:
    together = prompts()
    assert together == prompts()
    assert together == [row for seed in (0, 1) for depth in DEPTHS for row in prompts(seeds=[seed], depths=[depth])]


def test_seeds_depths_and_ids_of_the_prompts_are_told_seeds_outermost() -> None:
    assert [row["id"] for row in prompts()][:4] == [
        f"needle-sentences-{CONTEXT}-s0-d10",
        f"needle-sentences-{CONTEXT}-s0-d50",
        f"needle-sentences-{CONTEXT}-s0-d90",
        f"needle-sentences-{CONTEXT}-s1-d10",
    ]


def test_aware_and_agnostic_share_their_tokens_and_differ_in_what_is_compressed() -> None:
    for aware, agnostic in zip(prompts(), prompts(mode="agnostic"), strict=True):
        assert aware["ids"] == agnostic["ids"]
        assert aware["n_compress"] == CONTEXT - 1
        assert aware["text"] not in text_of(agnostic, 0, agnostic["n_compress"])
        assert text_of(agnostic, agnostic["n_compress"]).startswith("\n\n" + aware["text"])


def test_reuse_compresses_another_question_and_asks_the_prompt_s_own_afterwards() -> None:
    for aware, reuse in zip(prompts(), prompts(mode="reuse"), strict=True):
        compressed, rest = text_of(reuse, 0, reuse["n_compress"]), text_of(reuse, reuse["n_compress"])
        assert (reuse["answer"], reuse["text"]) == (aware["answer"], aware["text"])
        assert compressed.count("What is the access code of the") == 1
        assert reuse["text"] not in compressed
        assert reuse["text"] in rest
        assert reuse["answer"] not in rest
        codes = re.findall(r"[A-Z]{3}-\d{4}", compressed)
        assert len(set(codes)) == 2
        assert reuse["answer"] in codes


def test_the_answer_stands_in_the_needle_and_nowhere_else() -> None:
    for prompt in prompts():
        start, stop = prompt["span"]
        assert prompt["answer"] in text_of(prompt, start, stop)
        assert prompt["answer"] not in text_of(prompt, 0, start) + text_of(prompt, stop)


def test_the_floor_asks_the_same_question_without_any_context() -> None:
    for aware, no_context in zip(prompts(), prompts(mode="no_context"), strict=True):
        assert (no_context["answer"], no_context["text"]) == (aware["answer"], aware["text"])
        assert no_context["span"] is None
        assert no_context["n_compress"] == len(no_context["ids"]) - 1 < 200
        assert no_context["text"] in text_of(no_context)
        assert no_context["answer"] not in text_of(no_context)


def test_every_prompt_has_a_fresh_needle_and_every_seed_one_haystack() -> None:
    rows = prompts(seeds=range(5), depths=[5, 25, 50, 75, 95])
    assert len({row["answer"] for row in rows}) == len(rows)
    without = {(row["seed"], tuple(row["ids"][: row["span"][0]] + row["ids"][row["span"][1] :])) for row in rows}
    # The question differs between needles, so only the tokens before it are compared.
    hays = {(seed, ids[:600]) for seed, ids in without}
    assert len(hays) == 5
    assert len({ids for _, ids in hays}) == 5


def test_deeper_needles_stand_later_and_near_their_share_of_the_haystack() -> None:
    rows = prompts(seeds=[3], depths=[0, 25, 50, 75, 100], context=2000)
    starts = [row["span"][0] for row in rows]
    assert starts == sorted(starts)
    length = starts[-1] - starts[0]
    for row, start in zip(rows, starts, strict=True):
        assert abs((start - starts[0]) - row["depth"] / 100 * length) <= 32


def test_the_needle_stands_between_sentences_of_a_generated_haystack() -> None:
    for prompt in prompts(depths=[20, 40, 60, 80]):
        assert text_of(prompt, 0, prompt["span"][0]).endswith(".")


def test_a_corpus_haystack_is_a_run_of_the_corpus() -> None:
    starts = set()
    for prompt in prompts(haystack="corpus", corpus=CORPUS, seeds=range(4), depths=[100]):
        hay = text_of(prompt, 0, prompt["span"][0]).split("remember the code. ")[1]
        flat = " ".join(CORPUS.split())
        assert hay in flat
        starts.add(flat.index(hay))
    assert len(starts) == 4


def test_codes_that_the_corpus_holds_are_drawn_again() -> None:
    (free,) = prompts(haystack="corpus", corpus=CORPUS, seeds=[0], depths=[50])
    taken = f"{CORPUS}\nAn old note said {free['answer']}."
    (again,) = prompts(haystack="corpus", corpus=taken, seeds=[0], depths=[50])
    assert again["answer"] != free["answer"]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"mode": "psychic"}, "modes: unknown 'psychic'; choose one of aware"),
        ({"haystack": "hay"}, "haystack: unknown 'hay'; choose one of sentences"),
        ({"depths": [101]}, "depths: 101 "),
        ({"depths": [-1]}, "depths: -1 "),
        ({"context": 60}, "contexts: 60 tokens are too few"),
        ({"haystack": "corpus"}, "haystack: corpus needs text"),
        ({"haystack": "corpus", "corpus": " \n"}, "haystack: corpus needs text"),
        ({"haystack": "corpus", "corpus": "A short text. Very short."}, "haystack: the corpus has .* tokens"),
    ],
)
def test_a_value_that_cannot_be_met_is_one_line_naming_its_key(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(KvatlasError, match=complaint) as caught:
        prompts(**changes)
    assert "\n" not in str(caught.value)
