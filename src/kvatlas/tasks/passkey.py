"""The passkey task: a five-digit number in filler, up to the longest contexts a model takes.

It must not know models or caches. Two kinds of haystack matter: `noise`, five sentences repeated over and over (2305.16300),
whose near-duplicate keys flatter every method that looks at key geometry, and natural text, which does not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from kvatlas.lm.chat import Tokenizer
from kvatlas.tasks.facts import Fact, FactTask, Wording

WORDING = Wording(
    study="passkey",
    system="You are a helpful assistant. Answer the question using the text.",
    lead="The following text contains a passcode. Read it carefully and remember the passcode.",
)


def _number_fact(rng: random.Random, kind: str) -> Fact:
    number = str(rng.randint(10000, 99999))
    return Fact(
        sentence=f"The {kind} is {number}. Remember it. {number} is the {kind}.",
        question=f"What is the {kind} in the text? Answer with the number.",
        answer=number,
        reply=f"The {kind} is {number}.",
        key=f"the {kind} is",
    )


def draw_passkey(rng: random.Random) -> Fact:
    """A fresh passkey."""
    return _number_fact(rng, "passcode")


def draw_locker_number(rng: random.Random) -> Fact:
    """The other number in the haystack, which the first question of mode `reuse` asks for."""
    return _number_fact(rng, "locker number")


def make_prompts(
    tokenizer: Tokenizer,
    *,
    mode: str,
    context: int,
    seeds: Sequence[int],
    depths: Sequence[float] | None,
    haystack: str,
    corpus: str | None,
) -> list[dict[str, Any]]:
    """Passkey prompts of exactly `context` tokens, one per seed and depth, seeds outermost.

    mode: aware, agnostic, reuse or no_context. depths: percent of the haystack's tokens, or None for one drawn depth per
    seed. haystack: noise, sentences or corpus (a random run of the text `corpus` per seed). Raises KvatlasError for
    values that cannot be met.
    """
    task = FactTask(tokenizer, WORDING, draw_passkey, draw_locker_number)
    return task.prompts(mode=mode, context=context, seeds=seeds, depths=depths, haystack=haystack, corpus=corpus)
