"""Frequent words: coded words with Zipf frequencies among dots; the three most frequent ones are asked for.

As in the original, word k of a vocabulary of one word per 50 tokens occurs n k^-2 / zeta(2) times, rounded down; the most
frequent one is written as dots, which do not count.
"""

from __future__ import annotations

import math
import random
import string

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import encode
from kvatlas.tasks.long_context import Context, Draft, LongTask, Question

ASKED = 3
DOTS = "..."
TOKENS_PER_WORD = 50
_LETTERS = 6
_ZETA = math.pi**2 / 6  # of alpha 2


def question(answers: tuple[str, ...] = ()) -> Question:
    """Return the question, which is always the same."""
    return Question(
        f"Question: Do not provide any explanation. Please ignore the dots '{DOTS}.'. "
        "What are the three most frequently appeared words in the above coded text?",
        "Answer: According to the coded text above, the three most frequently appeared words are:",
        answers,
    )


def counts(n_words: int, vocabulary: int) -> list[int]:
    """Return how often each word occurs among `n_words`, the dots first."""
    return [int(n_words / (rank**2 * _ZETA)) for rank in range(1, vocabulary + 1)]


def draw(draft: Draft) -> tuple[tuple[Question, ...], Context]:
    """Draw the vocabulary, as many words of it as fit, and their order; dots fill what is left."""
    size = max(ASKED + 2, draft.length // TOKENS_PER_WORD)
    vocabulary = [DOTS]
    while len(vocabulary) < size:
        word = "".join(draft.rng.choices(string.ascii_lowercase, k=_LETTERS))
        vocabulary += [word] if word not in vocabulary else []
    tokens = {word: encode(draft.tokenizer, " " + word) for word in vocabulary}
    n_words = _most_words(draft.n_tokens, [len(tokens[word]) for word in vocabulary])
    often = counts(n_words, size)
    if often[ASKED] <= often[ASKED + 1]:
        raise KvatlasError(
            f"contexts: {draft.length} tokens do not tell the {ASKED} most frequent words from the next; use a longer context"
        )
    text = [word for word, count in zip(vocabulary, often, strict=True) for _ in range(count)]
    draft.rng.shuffle(text)
    answers = tuple(vocabulary[1 : ASKED + 1])
    ids: list[int] = []
    spans = []
    for word in text:
        if word in answers:
            spans.append((len(ids), len(ids) + len(tokens[word])))
        ids += tokens[word]
    left = draft.n_tokens - len(ids)
    return (question(answers),), Context(ids + (tokens[DOTS] * left)[:left], (tuple(spans),))


def _most_words(n_tokens: int, lengths: list[int]) -> int:
    """The largest number of words whose counts take at most `n_tokens` tokens."""
    low, high = 0, 2 * n_tokens
    while low < high:
        middle = (low + high + 1) // 2
        taken = sum(count * length for count, length in zip(counts(middle, len(lengths)), lengths, strict=True))
        low, high = (middle, high) if taken <= n_tokens else (low, middle - 1)
    return low


def _sample(rng: random.Random, corpus: str) -> Question:
    return question()


TASK = LongTask(
    name="fwe",
    label="Frequent words",
    family="aggregation",
    lead="Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words.",
    new_tokens=50,
    haystack="coded words",
    sample=_sample,
    draw=draw,
)
make_prompts = TASK.prompts
