"""The needle task: one alphanumeric code in a haystack, drawn with its key phrase for every prompt.

It must not know models or caches. Multi-depth needle-in-a-haystack as in the published studies; each prompt holds one needle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kvatlas.lm.chat import Tokenizer
from kvatlas.tasks import words
from kvatlas.tasks.facts import Fact, FactTask, Wording

WORDING = Wording(
    study="needle",
    system="You are a helpful assistant. Answer the question using the text.",
    lead="The following text contains an access code. Read it carefully and remember the code.",
)


def draw_code(rng: random.Random) -> str:
    """Three consonants, a hyphen and four digits, such as QZT-4821."""
    letters = "".join(rng.choices(words.CODE_LETTERS, k=3))
    return f"{letters}-{rng.randint(1000, 9999)}"


def draw_fact(rng: random.Random) -> Fact:
    """A fresh code with a fresh key phrase."""
    key = f"{rng.choice(words.KEY_ADJECTIVES)} {rng.choice(words.KEY_NOUNS)}"
    code = draw_code(rng)
    return Fact(
        sentence=f"The access code of the {key} is {code}.",
        question=f"What is the access code of the {key}?",
        answer=code,
        reply=f"The access code of the {key} is {code}.",
        key=key,
    )


def make_prompts(
    tokenizer: Tokenizer,
    *,
    mode: str,
    context: int,
    seeds: Sequence[int],
    depths: Sequence[float],
    haystack: str,
    corpus: str | None,
) -> list[dict[str, Any]]:
    """Needle prompts of exactly `context` tokens, one per seed and depth, seeds outermost.

    mode: aware, agnostic, reuse or no_context. depths: percent of the haystack's tokens. haystack: sentences, corpus (a
    random run of the text `corpus` per seed) or noise. Raises KvatlasError for values that cannot be met.
    """
    task = FactTask(tokenizer, WORDING, draw_fact, draw_fact)
    return task.prompts(mode=mode, context=context, seeds=seeds, depths=depths, haystack=haystack, corpus=corpus)
