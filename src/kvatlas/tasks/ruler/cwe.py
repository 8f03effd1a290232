"""Common words: a numbered list in which ten words are common and all others rare; the ten are asked for.

Frequencies are the original's: 30 and 3 times, and 6 times and once in contexts under 4,096 tokens. Words are drawn from the
study's text; no other word of a list holds a common one in it, because the score looks for parts of words, and none
is in the question. The original's worked example in front of the list is left out.
"""

from __future__ import annotations

import random
import re

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import Tokenizer, encode
from kvatlas.tasks.long_context import TEXT, Context, Draft, LongTask, Question
from kvatlas.tasks.text import make_haystack

LEAD = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
COMMON = 10
FREQUENCIES = {"short": (6, 1), "long": (30, 3)}
LONG = 4096
"""Tokens from which on a context has the frequencies of long ones."""


def question(answers: tuple[str, ...] = ()) -> Question:
    """Return the question, which is always the same."""
    return Question(
        f"Question: What are the {COMMON} most common words in the above list?",
        f"Answer: The top {COMMON} words that appear most often in the list are:",
        answers,
    )


def draw(draft: Draft) -> tuple[tuple[Question, ...], Context]:
    """Draw the words, as many rare ones as fit, and their order."""
    often, seldom = FREQUENCIES["long" if draft.length >= LONG else "short"]
    asked = question()
    said = _words(f"{LEAD} {asked.text} {asked.prefix}")
    vocabulary = sorted(_words(draft.corpus) - said)
    draft.rng.shuffle(vocabulary)
    common = _common(vocabulary)
    rare = [word for word in vocabulary if not any(chosen in word for chosen in common)]
    seed = draft.rng.random()
    low, high = 0, len(rare)
    while low < high:
        middle = (low + high + 1) // 2
        size = sum(len(ids) for _, ids in _items(draft.tokenizer, common, rare[:middle], (often, seldom), seed))
        low, high = (middle, high) if size <= draft.n_tokens else (low, middle - 1)
    items = _items(draft.tokenizer, common, rare[:low], (often, seldom), seed)
    left = draft.n_tokens - sum(len(ids) for _, ids in items)
    if left < 0 or low < COMMON:
        raise KvatlasError(
            f"contexts: {draft.length} tokens do not hold {COMMON} words {often} times each and rarer ones; use more"
        )
    if low == len(rare):
        raise KvatlasError(f"text: it has too few words for a list of {draft.length} tokens; use a longer text")
    ids: list[int] = []
    spans = []
    for word, piece in items:
        if word in common:
            spans.append((len(ids), len(ids) + len(piece)))
        ids += piece
    ids += make_haystack(draft.tokenizer, "noise", left, draft.rng).ids
    return (question(tuple(common)),), Context(ids, (tuple(spans),))


def _words(text: str) -> set[str]:
    """The words of four to nine plain letters, in lower case."""
    return {word.lower() for word in re.findall(r"(?<![\w'’])[A-Za-z]{4,9}(?![\w'’])", text)}


def _common(vocabulary: list[str]) -> list[str]:
    chosen: list[str] = []
    for word in vocabulary:
        if len(chosen) < COMMON and not any(word in other or other in word for other in chosen):
            chosen.append(word)
    if len(chosen) < COMMON:
        raise KvatlasError(f"text: it has fewer than {COMMON} words of four to nine letters; use a longer text")
    return chosen


def _items(
    tokenizer: Tokenizer, common: list[str], rare: list[str], frequencies: tuple[int, int], seed: float
) -> list[tuple[str, list[int]]]:
    """The list in its order: each word with the tokens of its line."""
    listed = common * frequencies[0] + rare * frequencies[1]
    random.Random(seed).shuffle(listed)
    return [(word, encode(tokenizer, f" {number}. {word}")) for number, word in enumerate(listed, start=1)]


def _sample(rng: random.Random, corpus: str) -> Question:
    return question()


TASK = LongTask(
    name="cwe",
    label="Common words",
    family="aggregation",
    lead=LEAD,
    new_tokens=120,
    haystack="words",
    sample=_sample,
    draw=draw,
    reads=TEXT,
)
make_prompts = TASK.prompts
