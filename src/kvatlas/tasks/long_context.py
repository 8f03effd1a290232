"""Long-context tasks: one context of an exact token count, questions about it, and the start of the answer.

The layout is the chat template's head with the task's instruction, the context, the question, the generation prompt and an
answer prefix, which belongs to the prompt as in RULER (2404.06654). It must not know what a context is made of, nor models
and caches. All prompts of a file have one length and their questions another, so that they are one batch in every mode.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import SLOT, Tokenizer, encode, message, render
from kvatlas.tasks.text import rng_for

MODES = ("aware", "agnostic", "reuse", "turns", "no_context")
SEVERAL = ("reuse", "turns")
REUSED = 4
"""Questions that are asked of one context in the modes `SEVERAL`."""

TEXT, DOCUMENTS = "text", "documents"
"""Keys of a study that name what contexts are drawn from: a text, or a set of paragraphs with questions."""

Span = tuple[int, int]
Drawn = TypeVar("Drawn")

_QUESTION, _ANSWER = "[[kvatlas-question]]", "[[kvatlas-answer]]"
_SHAPE_SAMPLE = 64
_MAX_DRAWS = 2000


@dataclass(frozen=True)
class Question:
    """What is asked of a context: the question, the start of its answer, and the references that are scored."""

    text: str
    prefix: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Context:
    """The tokens of a context, and for each of its questions the spans of tokens that its answer rests on."""

    ids: list[int]
    spans: tuple[tuple[Span, ...], ...]


Sample = Callable[[random.Random, str], Question]
"""Draws a question of a task from what its contexts are drawn from."""


class Tail:
    """Everything behind a context: how it is encoded, and how long it may be.

    Made once per tokenizer and task; renders the chat template once.
    """

    def __init__(self, tokenizer: Tokenizer, lead: str, corpus: str, sample: Sample) -> None:
        self.tokenizer = tokenizer
        whole = render(tokenizer, [message("user", f"{lead}{SLOT}\n\n{_QUESTION}")])
        self._bare = render(tokenizer, [message("user", _QUESTION)])
        head, *behind = whole.split(SLOT)
        turns = [message("user", "?"), message("assistant", _ANSWER), message("user", _QUESTION)]
        _, *after = render(tokenizer, turns).split(_ANSWER)
        self._turn = after[0] if len(after) == 1 else ""
        if len(behind) != 1 or any(text.count(_QUESTION) != 1 for text in (behind[0], self._bare, self._turn)):
            raise KvatlasError("models: the chat template drops or repeats message text; choose another model")
        self.head = encode(tokenizer, head)
        self._behind = behind[0]
        rng = rng_for("shape", lead)
        counts = Counter(self._shape(sample(rng, corpus)) for _ in range(_SHAPE_SAMPLE))
        self._common = max(counts, key=lambda shape: (counts[shape], shape))

    def ids(self, question: Question, *, alone: bool = False) -> list[int]:
        """Return the tokens of a question with the answer's prefix, behind a context or `alone` as a whole prompt."""
        template = self._bare if alone else self._behind
        return encode(self.tokenizer, template.replace(_QUESTION, question.text) + question.prefix)

    def turn_ids(self, question: Question) -> list[int]:
        """Return the tokens of a question that follows an answer to another one in the same conversation."""
        return encode(self.tokenizer, self._turn.replace(_QUESTION, question.text) + question.prefix)

    def fits(self, question: Question) -> bool:
        """Return whether a question has the commonest length, which all prompts of a file share."""
        return self._shape(question) == self._common

    @property
    def tokens(self) -> int:
        """Tokens around a context: before and behind it."""
        return len(self.head) + self._common[0]

    def _shape(self, question: Question) -> tuple[int, int]:
        return len(self.ids(question)), len(self.ids(question, alone=True))


@dataclass(frozen=True)
class Draft:
    """What a task draws a context with: a generator of its own, exactly `n_tokens` tokens to fill, the length of the
    prompts, the study's text, and how many questions are asked.
    """

    tail: Tail
    rng: random.Random
    n_tokens: int
    length: int
    corpus: str
    n_questions: int

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tail.tokenizer

    def draw(
        self, make: Callable[[], Drawn], question_of: Callable[[Drawn], Question], *, known: bool = False
    ) -> Drawn:
        """Draw what a question is about until it has the others' length and, unless they are `known` to be there, the
        text holds none of its references.
        """
        for _ in range(_MAX_DRAWS):
            drawn = make()
            question = question_of(drawn)
            hidden = known or not any(answer in self.corpus for answer in question.answers)
            if hidden and self.tail.fits(question):
                return drawn
        raise KvatlasError("tasks: no question of the common length was drawn; use another text or another model")


@dataclass(frozen=True)
class LongTask:
    """A task of a long-context benchmark; its file in `tasks/ruler` is all that an addition takes.

    Args:
        name: its file's. label: how pages call it. family: tasks that ask for the same ability.
        lead: the instruction in front of the context. new_tokens: the longest answer, in tokens.
        metric: of `answer_scores.METRICS`; empty where a study names it. haystack: what surrounds the answer, in a word.
        sample: draws a question of the usual length. draw: makes a context of exactly `draft.n_tokens` tokens.
        reuse: whether several questions can be asked of one context. reads: the key that names what contexts are drawn from,
            `TEXT` or `DOCUMENTS`; empty where nothing is.
    """

    name: str
    label: str
    family: str
    lead: str
    new_tokens: int
    haystack: str
    sample: Sample
    draw: Callable[[Draft], tuple[tuple[Question, ...], Context]]
    metric: str = "all"
    reuse: bool = False
    reads: str = ""

    def prompts(
        self,
        tokenizer: Tokenizer,
        *,
        mode: str,
        context: int,
        seeds: Sequence[int],
        corpus: str | None = None,
        metric: str = "",
    ) -> list[dict[str, Any]]:
        """Return one prompt of exactly `context` tokens per seed; in mode `no_context` the question alone.

        mode: aware (all but the last token is compressed), agnostic (the context is), reuse and turns (as agnostic,
        with `REUSED` questions) or no_context. corpus: what `reads` names. metric: of a task that has none of its
        own. Raises KvatlasError for what cannot be met.
        """
        if mode not in MODES:
            raise KvatlasError(f"modes: unknown {mode!r}; choose one of {', '.join(MODES)}")
        if mode in SEVERAL and not self.reuse:
            raise KvatlasError(f"tasks: {self.name} has one question per context, and mode {mode} asks {REUSED}")
        if self.reads and not corpus:
            raise KvatlasError(
                f"{self.reads}: task {self.name} draws its contexts from it; name one of config/texts.yaml"
            )
        if bool(self.metric) == bool(metric):
            reason = f"is scored by '{self.metric}'" if metric else "has no metric of its own"
            raise KvatlasError(f"metric: task {self.name} {reason}")
        tail = Tail(tokenizer, self.lead, corpus or "", self.sample)
        rows = [self._prompt(tail, mode, context, seed, corpus or "") for seed in seeds]
        return [row | {"metric": metric or self.metric} for row in rows]

    def _prompt(self, tail: Tail, mode: str, context: int, seed: int, corpus: str) -> dict[str, Any]:
        rng = rng_for(self.name, context, seed)
        n_tokens = context - tail.tokens
        if n_tokens < 1:
            raise KvatlasError(
                f"contexts: {context} tokens are too few for task {self.name}, whose question and chat template take "
                f"{tail.tokens}; use a longer context"
            )
        n_questions = REUSED if self.reuse else 1
        questions, drawn = self.draw(Draft(tail, rng, n_tokens, context, corpus, n_questions))
        row = {
            "id": f"ruler-{self.name}-{context}-s{seed}",
            "study": "ruler",
            "task": self.name,
            "mode": mode,
            "context": context,
            "seed": seed,
            "depth": None,
            "haystack": self.haystack,
        }
        if mode == "no_context":
            ids = tail.ids(questions[0], alone=True)
            return row | {"ids": ids, "n_compress": len(ids) - 1} | _asked(questions[0], ())
        before = [*tail.head, *drawn.ids]
        asked = [
            {"ids": tail.ids(question), "turn_ids": tail.turn_ids(question)}
            | _asked(question, _shifted(spans, len(tail.head)))
            for question, spans in zip(questions, drawn.spans, strict=True)
        ]
        ids = before + asked[0]["ids"]
        n_compress = len(ids) - 1 if mode == "aware" else len(before)
        further = {"questions": asked} if mode in SEVERAL else {}
        first = _asked(questions[0], _shifted(drawn.spans[0], len(tail.head)))
        return row | first | {"ids": ids, "n_compress": n_compress} | further


def _asked(question: Question, spans: Sequence[Span]) -> dict[str, Any]:
    return {
        "text": question.text,
        "answers": list(question.answers),
        "answer": ", ".join(question.answers),
        "spans": [list(span) for span in spans] or None,
    }


def _shifted(spans: Sequence[Span], by: int) -> list[Span]:
    return [(start + by, stop + by) for start, stop in spans]
