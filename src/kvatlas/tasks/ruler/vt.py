"""Variable tracking: a chain of four assignments in repeated noise; all five variables with the value are asked for.

The original's worked example in front of the context is left out.
"""

from __future__ import annotations

import random
import string

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import encode
from kvatlas.tasks.long_context import Context, Draft, LongTask, Question
from kvatlas.tasks.needles import insert
from kvatlas.tasks.text import make_haystack

HOPS = 4
_NAME_LETTERS = 5


def draw_question(rng: random.Random) -> Question:
    """Draw the names of a chain's variables, first to last, and the value they have."""
    names: list[str] = []
    while len(names) <= HOPS:
        name = "".join(rng.choices(string.ascii_uppercase, k=_NAME_LETTERS))
        names += [name] if name not in names else []
    value = rng.randint(10_000, 99_999)
    return Question(
        f"Question: Find all variables that are assigned the value {value} in the text above.",
        "Answer: According to the chain(s) of variable assignment in the text above, "
        f"{len(names)} variables are assigned the value {value}, they are:",
        tuple(names),
    )


def draw(draft: Draft) -> tuple[tuple[Question, ...], Context]:
    """Draw a chain, and put its assignments into the noise in their order."""
    question = draft.draw(lambda: draw_question(draft.rng), lambda drawn: drawn)
    value = question.text.split()[9]
    values = [value, *(f"VAR {name}" for name in question.answers)]
    texts = [f" VAR {name} = {given}." for name, given in zip(question.answers, values, strict=False)]
    pieces = [encode(draft.tokenizer, text) for text in texts]
    left = draft.n_tokens - sum(map(len, pieces))
    if left < 1:
        raise KvatlasError(
            f"contexts: {draft.length} tokens are too few for a chain; use at least {draft.length - left + 64}"
        )
    hay = make_haystack(draft.tokenizer, "noise", left, draft.rng)
    offsets = sorted(hay.offset_at(draft.rng.uniform(0, 100)) for _ in pieces)
    placed = [(offset, 0, piece) for offset, piece in zip(offsets, pieces, strict=True)]
    return (question,), insert(hay.ids, placed, 1)


TASK = LongTask(
    name="vt",
    label="Variable tracking",
    family="tracing",
    lead="Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n",
    new_tokens=30,
    haystack="noise",
    sample=lambda rng, corpus: draw_question(rng),
    draw=draw,
)
make_prompts = TASK.prompts
