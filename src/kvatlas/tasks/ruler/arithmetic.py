"""Arithmetic chains, after GSM8K's long answers: a number and what is added to it, worked through aloud.

Not of RULER. The chain stands in repeated noise; the answer writes a total after each addition and ends with the last.
What is evicted under the schedule every_step is the model's own reasoning. The last number of the answer is what counts.
"""

from __future__ import annotations

import random

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import encode
from kvatlas.tasks.long_context import Context, Draft, LongTask, Question
from kvatlas.tasks.needles import insert
from kvatlas.tasks.text import make_haystack

ADDITIONS = 6


def chain(rng: random.Random) -> list[int]:
    """Draw the first number and what is added to it, three digits each; every addition but the first has a carry."""
    numbers = [rng.randint(100, 999), rng.randint(100, 999)]
    while len(numbers) <= ADDITIONS:
        last = sum(numbers) % 10
        if last == 0:  # no digit carries over to it: draw another chain
            return chain(rng)
        numbers.append(10 * rng.randint(10, 99) + rng.randint(10 - last, 9))
    return numbers


def question_of(numbers: list[int]) -> Question:
    """Return the question of a chain."""
    return Question(
        f"Question: Start with the first number of the chain in the text above and make its {ADDITIONS} additions one by "
        "one. Write the total after each of them, and end with the last total.",
        f"Start: {numbers[0]}\nTotal 1:",
        (str(sum(numbers)),),
    )


def draw(draft: Draft) -> tuple[tuple[Question, ...], Context]:
    """Draw a chain, and put its parts into the noise in their order."""
    numbers = draft.draw(lambda: chain(draft.rng), question_of)
    texts = [f" The chain starts with {numbers[0]}."]
    texts += [f" Addition {number} of the chain: add {added}." for number, added in enumerate(numbers[1:], start=1)]
    pieces = [encode(draft.tokenizer, text) for text in texts]
    left = draft.n_tokens - sum(map(len, pieces))
    if left < 1:
        raise KvatlasError(
            f"contexts: {draft.length} tokens are too few for a chain; use at least {draft.length - left + 64}"
        )
    hay = make_haystack(draft.tokenizer, "noise", left, draft.rng)
    offsets = sorted(hay.offset_at(draft.rng.uniform(0, 100)) for _ in pieces)
    placed = [(offset, 0, piece) for offset, piece in zip(offsets, pieces, strict=True)]
    return (question_of(numbers),), insert(hay.ids, placed, 1)


TASK = LongTask(
    name="arithmetic",
    label="Arithmetic chain",
    family="long answers",
    lead="A chain of additions is hidden in the following text. Memorize its numbers.\n\n",
    new_tokens=128,
    haystack="noise",
    sample=lambda rng, corpus: question_of(chain(rng)),
    draw=draw,
    metric="last_number",
)
make_prompts = TASK.prompts
