"""Claims about RULER's tasks: exact lengths, spans that hold the answers, and answers that are right."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvatlas.errors import KvatlasError
from kvatlas.tasks.ruler import all_tasks
from kvatlas.tasks.ruler.fwe import counts
from kvatlas.tasks.text import draw_sentence, rng_for
from tests.support.prompts import TOKENIZER, text_of

TASKS = all_tasks()
# A data set's own texts have no known spans, and a chain's total stands nowhere; their tests are at the end.
NAMES = sorted(set(TASKS) - {"dataset", "arithmetic"})
NEEDLES = [name for name in NAMES if name.startswith("niah")]
CONTEXT = 1600
# Made-up words between the sentences, so that the lists of common words have enough of them.
CORPUS = "\n".join(
    draw_sentence(rng_for("corpus", number))
    + " The "
    + " ".join(
        "".join(rng_for("word", number, word).choices("abcdefghijklmnopqrstuvwxyz", k=4 + word)) for word in range(4)
    )
    + " are words."
    for number in range(150)
)

DOCUMENTS = "\n".join(
    json.dumps(
        {
            "context": " ".join(draw_sentence(rng_for("document", number, line)) for line in range(6))
            + f" The archive of box {1000 + number} is kept in room {5000 + number}.",
            "question": f"In which room is the archive of box {1000 + number} kept?",
            "answers": [f"room {5000 + number}"],
        }
    )
    for number in range(60)
)


def prompts(name: str, **changes: Any) -> list[dict[str, Any]]:
    asked: dict[str, Any] = {
        "mode": "aware",
        "context": CONTEXT,
        "seeds": [0, 1],
        "corpus": DOCUMENTS if name == "qa" else CORPUS,
    }
    return TASKS[name].prompts(TOKENIZER, **(asked | changes))


def context_of(prompt: dict[str, Any]) -> str:
    """The text between the instruction and the question."""
    return text_of(prompt).partition(prompt["text"])[0]


def test_the_tasks_are_those_of_the_benchmark() -> None:
    needles = [f"niah_{kind}_{number}" for kind in ("single", "multikey") for number in (1, 2, 3)]
    assert sorted(
        [*needles, "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa", "dataset", "arithmetic"]
    ) == sorted(TASKS)
    assert {name: TASKS[name].new_tokens for name in ("niah_single_1", "vt", "cwe", "fwe")} == {
        "niah_single_1": 128,
        "vt": 30,
        "cwe": 120,
        "fwe": 50,
    }


@settings(max_examples=15, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    context=st.integers(1300, 2000),
    seed=st.integers(0, 10_000),
    mode=st.sampled_from(["aware", "agnostic"]),
)
def test_a_prompt_has_exactly_the_context_and_its_spans_hold_the_answers(
    name: str, context: int, seed: int, mode: str
) -> None:
    (prompt,) = prompts(name, context=context, seeds=[seed], mode=mode)
    assert len(prompt["ids"]) == context
    spans = prompt["spans"]
    assert all(0 < start < stop <= prompt["n_compress"] for start, stop in spans)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    held = "\n".join(text_of(prompt, *span) for span in spans)
    assert all(answer in held for answer in prompt["answers"])
    assert not any(answer in prompt["text"] for answer in prompt["answers"])


@pytest.mark.parametrize("name", NAMES)
def test_prompts_of_a_file_line_up_and_end_with_the_start_of_the_answer(name: str) -> None:
    for mode in ("aware", "agnostic", "no_context"):
        rows = prompts(name, mode=mode, seeds=range(3))
        assert len({(len(row["ids"]), row["n_compress"]) for row in rows}) == 1
        assert len({row["id"] for row in rows}) == 3
        assert rows[1:] == prompts(name, mode=mode, seeds=[1, 2])
        for row in rows:
            assert re.search(r"(is|are|are:|Answer:)$", text_of(row))
    aware, agnostic = prompts(name)[0], prompts(name, mode="agnostic")[0]
    assert aware["ids"] == agnostic["ids"]
    assert aware["text"] in text_of(agnostic, agnostic["n_compress"])
    assert aware["text"] not in text_of(agnostic, 0, agnostic["n_compress"])
    alone = prompts(name, mode="no_context")[0]
    assert alone["text"] == aware["text"]
    assert alone["spans"] is None
    assert not any(answer in text_of(alone) for answer in alone["answers"])


@pytest.mark.parametrize("name", NEEDLES)
def test_needles_say_what_is_asked_and_no_other_needle_says_it_again(name: str) -> None:
    for prompt in prompts(name, seeds=range(3)):
        found = re.findall(r"One of the special magic (?:number|uuid)s for (\S+) is: (\S+)\.", context_of(prompt))
        by_key: dict[str, list[str]] = {}
        for key, value in found:
            by_key.setdefault(key, []).append(value)
        asked = [key for key in by_key if key in prompt["text"]]
        assert sorted(value for key in asked for value in by_key[key]) == sorted(prompt["answers"])
        assert len({value for _, value in found}) == len(found)
        wanted = {"niah_multivalue": (1, 4), "niah_multiquery": (4, 4), "niah_multikey_1": (4, 1)}
        if name in wanted:
            assert (len(by_key), len(prompt["answers"])) == wanted[name]
        elif name.startswith("niah_single"):
            assert len(found) == 1
        else:
            assert len(found) > 8


@pytest.mark.parametrize("name", [name for name in NAMES if TASKS[name].reuse])
def test_reuse_asks_four_questions_of_one_context_each_with_a_needle_of_its_own(name: str) -> None:
    (prompt,) = prompts(name, mode="reuse", seeds=[3])
    asked = prompt["questions"]
    assert len(asked) == 4
    assert len({question["text"] for question in asked}) == 4
    assert len({len(question["ids"]) for question in asked}) == 1
    assert prompt["ids"][prompt["n_compress"] :] == asked[0]["ids"]
    for question in asked:
        ((start, stop),) = question["spans"]
        assert question["answers"][0] in text_of(prompt, start, stop)
        assert stop <= prompt["n_compress"]
    assert prompt["text"] == prompts(name, seeds=[3])[0]["text"]


def test_the_chain_ends_in_the_value_that_is_asked_for() -> None:
    for prompt in prompts("vt", seeds=range(4)):
        given = dict(re.findall(r"VAR (\w+) = ((?:VAR )?\w+)\.", context_of(prompt)))
        value = re.search(r"the value (\d+)", prompt["text"])
        assert value is not None

        def resolved(name: str, given: dict[str, str] = given) -> str:
            held = given[name]
            return resolved(held.removeprefix("VAR ")) if held.startswith("VAR ") else held

        assert sorted(given) == sorted(prompt["answers"])
        assert {resolved(name) for name in given} == {value[1]}


@pytest.mark.parametrize(("context", "often", "seldom"), [(CONTEXT, 6, 1), (4400, 30, 3)])
def test_common_words_are_common_and_no_other_word_holds_one(context: int, often: int, seldom: int) -> None:
    (prompt,) = prompts("cwe", context=context, seeds=[5])
    listed = re.findall(r" (\d+)\. ([a-z]+)", context_of(prompt))
    assert [int(number) for number, _ in listed] == list(range(1, len(listed) + 1))
    found = Counter(word for _, word in listed)
    assert sorted(word for word, count in found.items() if count == often) == sorted(prompt["answers"])
    assert {count for word, count in found.items() if word not in prompt["answers"]} == {seldom}
    assert not any(a != b and a in b for a in prompt["answers"] for b in found)


def test_frequent_words_are_the_three_most_frequent_by_zipf_s_law() -> None:
    assert counts(200, 5) == [121, 30, 13, 7, 4]
    for prompt in prompts("fwe", seeds=range(3)):
        text = context_of(prompt).partition("coded words.")[2]
        found = Counter(re.findall(r"\b[a-z]{6}\b", text))
        ranked = [word for word, _ in found.most_common(3)]
        assert ranked == prompt["answers"]
        assert found[ranked[2]] > max((n for word, n in found.items() if word not in ranked), default=0)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("niah_single_1", {"context": 40}, "contexts: 40 tokens are too few"),
        ("niah_multivalue", {"context": 260}, "contexts: 260 tokens are too few for the 4 needles"),
        ("cwe", {"context": 700}, "contexts: 700 tokens do not hold"),
        ("cwe", {"context": 80_000}, "text: it has too few words"),
        ("cwe", {"corpus": "Only a few words."}, "text: it has fewer than 10 words"),
        ("niah_single_2", {"corpus": None}, "text: task niah_single_2 draws its contexts from it"),
        ("qa", {"corpus": "no rows"}, "documents: line 1 is no JSON object"),
        (
            "qa",
            {"corpus": '{"context": "a", "question": "b", "answers": []}'},
            "documents: line 1: context and question",
        ),
        ("qa", {"context": 20_000}, "documents: they have too few tokens"),
        ("qa", {"corpus": None}, "documents: task qa draws its contexts from it"),
        ("vt", {"mode": "reuse"}, "tasks: vt has one question per context, and mode reuse asks 4"),
        ("vt", {"mode": "other"}, "modes: unknown 'other'"),
    ],
)
def test_what_cannot_be_met_is_refused_by_the_key_s_name(name: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(KvatlasError, match=words):
        prompts(name, **changes)


def test_the_answer_to_a_question_on_documents_stands_in_its_document_alone() -> None:
    for prompt in prompts("qa", seeds=range(4), mode="agnostic"):
        ((start, stop),) = prompt["spans"]
        before, after = text_of(prompt, 0, start), text_of(prompt, stop)
        box = re.search(r"box (\d+)", prompt["text"])
        assert box is not None
        assert f"box {box[1]} is kept in {prompt['answers'][0]}." in text_of(prompt, start, stop)
        assert prompt["answers"][0] not in before + after
        assert re.search(r"Document \d+:\n$", before)
        numbers = [int(number) for number in re.findall(r"Document (\d+):", text_of(prompt))]
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) > 3


def test_a_row_of_a_data_set_is_cut_in_the_middle_and_scored_by_the_study_s_metric() -> None:
    long = " ".join(str(number) for number in range(3000))
    rows = [{"context": "Too short.", "question": "What is 0?", "answers": ["no"]}]
    rows += [{"context": long, "question": f"What is {number}?", "answers": ["a number"]} for number in (1, 2, 3)]
    documents = "\n".join(map(json.dumps, rows))
    asked = TASKS["dataset"].prompts(
        TOKENIZER, mode="agnostic", context=600, seeds=range(4), corpus=documents, metric="f1"
    )
    for prompt in asked:
        assert (len(prompt["ids"]), prompt["metric"], prompt["answers"]) == (600, "f1", ["a number"])
        kept = text_of(prompt, 0, prompt["n_compress"]).partition("alone.\n\n")[2]
        assert kept.startswith("0 1 2 3 ")
        assert kept.endswith("2998 2999")
        assert prompt["spans"] is None
    with pytest.raises(KvatlasError, match="no row of the documents fills a prompt of 90000 tokens"):
        TASKS["dataset"].prompts(TOKENIZER, mode="aware", context=90_000, seeds=[0], corpus=documents, metric="f1")
    with pytest.raises(KvatlasError, match="metric: task dataset has no metric of its own"):
        TASKS["dataset"].prompts(TOKENIZER, mode="aware", context=600, seeds=[0], corpus=documents)
    with pytest.raises(KvatlasError, match="metric: task vt is scored by 'all'"):
        prompts("vt", metric="f1")


def test_a_chain_adds_up_and_every_addition_but_the_first_carries() -> None:
    for mode in ("aware", "agnostic"):
        rows = prompts("arithmetic", mode=mode, seeds=range(3), context=900)
        assert {(len(row["ids"]), row["n_compress"]) for row in rows} == {(900, rows[0]["n_compress"])}
        for row in rows:
            start = re.search(r"chain starts with (\d+)\.", context_of(row))
            added = [int(number) for number in re.findall(r"Addition \d of the chain: add (\d+)\.", context_of(row))]
            assert start is not None
            totals = [int(start[1]) + sum(added[:number]) for number in range(len(added) + 1)]
            assert row["answers"] == [str(totals[-1])]
            assert all(total % 10 + more % 10 > 9 for total, more in zip(totals[1:], added[1:], strict=False))
            assert text_of(row).endswith(f"Start: {start[1]}\nTotal 1:")
            assert len(row["spans"]) == 7
