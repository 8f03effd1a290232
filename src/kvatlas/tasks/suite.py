"""The task suite: four families of chat prompts, each with one load-bearing span of tokens and a known answer.

needle: an access code in filler at 5, 35, 65 and 95 percent. multi_turn: a rule set in the first turn, asked for after
six turns of chatter. instruction: a rule in the system prompt. summary: a distinctive detail at the start of a text
that is to be summed up. All prompts of a file have one exact length. It must not know models or caches.

Instance 0 is a set of nine tasks as published (four needles, three rules of a conversation, one instruction, one
summary); every further instance has one prompt per cell (four depths, three other families). In mode `no_context` the
load-bearing span of every prompt is replaced by filler of the same length, so that nothing but guessing is left.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import SLOT, Message, Tokenizer, encode, encode_pieces, message
from kvatlas.tasks import needle, words
from kvatlas.tasks.text import draw_sentence, fill, rng_for

STUDY = "task_suite"
MODES = ("suite", "no_context")
DEPTHS = (5, 35, 65, 95)
TURNS = 6
PUBLISHED_INSTANCE, PUBLISHED_RULES = 0, 3
ASSISTANT = "You are a helpful assistant."
_ACKNOWLEDGEMENTS = ("I see.", "Thank you.", "Good to know.", "Interesting.", "All right.", "Understood.")
_STORY_TITLES = ("captain", "doctor", "professor", "baker", "painter", "sailor")


@dataclass(frozen=True)
class Task:
    """One prompt before it has a length.

    Args:
        messages: the conversation; every SLOT in it takes tokens. fact: the load-bearing text. fact_slot: number of the
            slot that it goes to; the other slots share the filler.
        question: what is asked at the end. answer: what is scored. reply: the gold reply around it.
    """

    family: str
    messages: tuple[Message, ...]
    fact: str
    fact_slot: int
    question: str
    answer: str
    reply: str


def make_prompts(
    tokenizer: Tokenizer, *, mode: str, context: int, instances: Sequence[int], corpus: str | None = None
) -> list[dict[str, Any]]:
    """Return the prompts of some instances, exactly `context` tokens each, instances outermost.

    A prompt is as for other tasks, with `family` and `instance`; `span` is the load-bearing span of tokens, also in
    mode `no_context`, where filler stands there. `corpus` is not used. Raises KvatlasError for an unknown mode or a context
    that is too short.
    """
    if mode not in MODES:
        raise KvatlasError(f"modes: unknown {mode!r}; choose one of {', '.join(MODES)}")
    rows = []
    for instance in instances:
        rows += _needles(tokenizer, context, instance)
        n_rules = PUBLISHED_RULES if instance == PUBLISHED_INSTANCE else 1
        for number in range(n_rules):
            rng = rng_for(STUDY, context, instance, "multi_turn", number)
            task = multi_turn(rng)
            rows.append(_compose(tokenizer, task, context=context, instance=instance, rng=rng, label=str(number)))
        for draw in (instruction, summary):
            rng = rng_for(STUDY, context, instance, draw.__name__)
            rows.append(_compose(tokenizer, draw(rng), context=context, instance=instance, rng=rng, label="0"))
    return (
        [_without_fact(tokenizer, row) for row in rows] if mode == "no_context" else [{**r, "mode": mode} for r in rows]
    )


def multi_turn(rng: random.Random) -> Task:
    """A rule of the conversation, six turns of chatter, and a question that only the rule answers."""
    code, thing = needle.draw_code(rng), f"{rng.choice(words.KEY_ADJECTIVES)} {rng.choice(words.KEY_NOUNS)}"
    chatter = [
        turn
        for reply in rng.sample(_ACKNOWLEDGEMENTS, TURNS)
        for turn in (message("user", SLOT), message("assistant", reply))
    ]
    question, reply = f"What is the access code of the {thing}?", f"The access code of the {thing} is {code}."
    return Task(
        family="multi_turn",
        messages=(
            message("system", ASSISTANT),
            message("user", SLOT),
            message("assistant", "All right, I will."),
            *chatter,
            message("user", question),
        ),
        fact=f"Here is a rule for later. When I ask for the code, answer: {reply}",
        fact_slot=0,
        question=question,
        answer=code,
        reply=reply,
    )


def instruction(rng: random.Random) -> Task:
    """A rule in the system prompt, at the very start, and a request that it covers."""
    code, thing = needle.draw_code(rng), f"{rng.choice(words.KEY_ADJECTIVES)} {rng.choice(words.KEY_NOUNS)}"
    question = f"What is the access code of the {thing}?"
    reply = f"The access code of the {thing} is {code}."
    return Task(
        family="instruction",
        messages=(
            message("system", f"{ASSISTANT}{SLOT}"),
            message("user", f"Read these notes.{SLOT}\n\n{question}"),
        ),
        fact=f" Tell the following access code to everyone who asks for it. {reply}",
        fact_slot=0,
        question=question,
        answer=code,
        reply=reply,
    )


def summary(rng: random.Random) -> Task:
    """A text whose first sentence names its subject; a faithful summary has to name it too."""
    hero = f"{rng.choice(words.KEY_ADJECTIVES)} {rng.choice(words.KEY_NOUNS)}"
    title = rng.choice(_STORY_TITLES)
    question = "Sum up the text in one sentence that begins with: The text is about a ship called"
    return Task(
        family="summary",
        messages=(
            message("system", ASSISTANT),
            message("user", f"Here is a text.{SLOT}{SLOT}\n\n{question}"),
        ),
        fact=f" This text is about a {title} and a ship called {hero.title()}.",
        fact_slot=0,
        question=question,
        answer=hero,
        reply=f"The text is about a ship called {hero.title()}.",
    )


def _needles(tokenizer: Tokenizer, context: int, instance: int) -> list[dict[str, Any]]:
    rows = needle.make_prompts(
        tokenizer,
        mode="aware",
        context=context,
        seeds=[instance],
        depths=DEPTHS,
        haystack="sentences",
        corpus=None,
    )
    return [
        row | _identity("needle", context, instance, f"d{depth}") | {"depth": depth}
        for row, depth in zip(rows, DEPTHS, strict=True)
    ]


def _identity(family: str, context: int, instance: int, label: str) -> dict[str, Any]:
    return {
        "id": f"suite-{family}-{context}-i{instance}-{label}",
        "study": STUDY,
        "context": context,
        "seed": instance,
        "instance": instance,
        "family": family,
        "depth": None,
        "haystack": "sentences",
    }


def _compose(
    tokenizer: Tokenizer, task: Task, *, context: int, instance: int, rng: random.Random, label: str
) -> dict[str, Any]:
    """Fill the slots of a task so that the prompt has exactly `context` tokens."""
    pieces = encode_pieces(tokenizer, task.messages)
    fact = encode(tokenizer, task.fact)
    n_fillers = len(pieces) - 2
    free = context - sum(map(len, pieces)) - len(fact)
    if free < n_fillers:
        raise KvatlasError(
            f"context: {context} tokens are too few for a {task.family} task, which needs "
            f"{context - free + n_fillers}; use a longer context"
        )
    # The first fillers are one token longer where the free tokens do not divide evenly.
    sizes = [free // n_fillers + (filler < free % n_fillers) for filler in range(n_fillers)]
    ids, span = list(pieces[0]), [0, 0]
    for slot, piece in enumerate(pieces[1:]):
        if slot == task.fact_slot:
            span = [len(ids), len(ids) + len(fact)]
            ids += fact
        else:
            ids += _filler(tokenizer, sizes.pop(0), rng)
        ids += piece
    return _identity(task.family, context, instance, label) | {
        "ids": ids,
        "n_compress": len(ids) - 1,
        "span": span,
        "answer": task.answer,
        "answer_ids": encode(tokenizer, task.reply),
        "text": task.question,
    }


def _filler(tokenizer: Tokenizer, n_tokens: int, rng: random.Random) -> list[int]:
    return [token for sentence in fill(tokenizer, n_tokens, lambda: draw_sentence(rng)) for token in sentence]


def _without_fact(tokenizer: Tokenizer, row: dict[str, Any]) -> dict[str, Any]:
    start, stop = row["span"]
    ids = list(row["ids"])
    ids[start:stop] = _filler(tokenizer, stop - start, rng_for(row["id"], "floor"))
    return {**row, "ids": ids, "mode": "no_context"}
