"""Needles of RULER (2404.06654): special magic numbers and UUIDs of keys, in noise, in a text, or among each other.

A context holds `keys` x `values` needles, at depths drawn for each context; `asked` of its keys are asked for. It must not
know models or caches.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Set
from dataclasses import dataclass
from itertools import product

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import encode
from kvatlas.tasks import long_context, words
from kvatlas.tasks.long_context import Context, Draft, LongTask, Question, Span
from kvatlas.tasks.text import make_haystack, split_sentences

NEW_TOKENS = 128
NOISE, TEXT, NEEDLES = "noise", "corpus", "needles"

Keys = dict[str, list[str]]
"""Keys with their values."""

_FIRST = (*words.KEY_ADJECTIVES, *words.MOODS, *words.MATERIALS)
_SECOND = (*words.KEY_NOUNS, *words.THINGS, *words.GOODS, *words.ANIMALS)
_KEYS = tuple("-".join(pair) for pair in product(_FIRST, _SECOND))
_MAX_DRAWS = 10_000


def word_key(rng: random.Random) -> str:
    """Two words joined by a hyphen."""
    return rng.choice(_KEYS)


def number(rng: random.Random) -> str:
    """Seven digits."""
    return str(rng.randint(1_000_000, 9_999_999))


def random_uuid(rng: random.Random) -> str:
    """A UUID of version 4."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


@dataclass(frozen=True)
class Needles:
    """How the needles of a task are made.

    Args:
        haystack: noise (five repeated sentences), corpus (a run of the study's text), or needles (nothing but needles).
        kind: what a value is called. key, value: their draws. keys, values: keys in a context, values of each.
        asked: keys in one question.
    """

    haystack: str
    kind: str = "number"
    key: Callable[[random.Random], str] = word_key
    value: Callable[[random.Random], str] = number
    keys: int = 1
    values: int = 1
    asked: int = 1

    @property
    def single(self) -> bool:
        """Whether one value is asked for: the wording of the original differs."""
        return self.values * self.asked == 1

    def sentence(self, key: str, value: str) -> str:
        """The needle."""
        return f"One of the special magic {self.kind}s for {key} is: {value}."

    def question(self, needles: Keys) -> Question:
        """The question for all values of some keys."""
        *first, last = needles
        names = f"{', '.join(first)}, and {last}" if first else last
        answers = tuple(value for values in needles.values() for value in values)
        if self.single:
            about = f"the special magic {self.kind} for {names} mentioned in the provided text"
            return Question(f"What is {about}?", f"The special magic{about[17:]} is", answers)
        about = f"the special magic {self.kind}s for {names} mentioned in the provided text"
        return Question(f"What are all {about}?", f"The special magic{about[17:]} are", answers)

    def sample(self, rng: random.Random, corpus: str) -> Question:
        """Draw a question."""
        return self.question({self.key(rng): [self.value(rng) for _ in range(self.values)] for _ in range(self.asked)})

    def draw(self, draft: Draft) -> tuple[tuple[Question, ...], Context]:
        """Draw the needles that are asked for, the others, and what surrounds them."""
        known: set[str] = set()
        asked: list[Keys] = []
        for _ in range(draft.n_questions):
            asked.append(draft.draw(lambda: self._keys(draft, known), self.question))
            known.update(asked[-1])
        questions = tuple(map(self.question, asked))
        needles = [
            (number, key, value) for number, keys in enumerate(asked) for key, vs in keys.items() for value in vs
        ]
        while self.keys > len(known):
            key = self._new(draft, known)
            needles += [(-1, key, self.value(draft.rng)) for _ in range(self.values)]
        pieces = [(owner, encode(draft.tokenizer, " " + self.sentence(key, value))) for owner, key, value in needles]
        left = draft.n_tokens - sum(len(piece) for _, piece in pieces)
        if left < 1:
            raise KvatlasError(
                f"contexts: {draft.length} tokens are too few for the {len(pieces)} needles of this task; use at least "
                f"{draft.length - left + 64}"
            )
        if self.haystack == NEEDLES:
            return questions, self._among_needles(draft, pieces, left, known)
        sentences = split_sentences(draft.corpus) if self.haystack == TEXT else None
        hay = make_haystack(draft.tokenizer, self.haystack, left, draft.rng, sentences)
        placed = [(hay.offset_at(draft.rng.uniform(0, 100)), owner, piece) for owner, piece in pieces]
        return questions, insert(hay.ids, placed, len(questions))

    def _keys(self, draft: Draft, known: Set[str]) -> Keys:
        """The keys of one question with their values, all of them new."""
        taken = set(known)
        return {self._new(draft, taken): [self.value(draft.rng) for _ in range(self.values)] for _ in range(self.asked)}

    def _new(self, draft: Draft, known: set[str]) -> str:
        for _ in range(_MAX_DRAWS):
            key = self.key(draft.rng)
            if key not in known and key not in draft.corpus:
                known.add(key)
                return key
        raise KvatlasError(f"contexts: {draft.length} tokens take more keys than there are; use a shorter context")

    def _among_needles(self, draft: Draft, pieces: list[tuple[int, list[int]]], left: int, known: set[str]) -> Context:
        """The needles in a row of others; what is too short for one more is filled with noise at the end."""
        hay: list[list[int]] = []
        while True:
            sentence = self.sentence(self._new(draft, known), self.value(draft.rng))
            piece = encode(draft.tokenizer, " " + sentence)
            if len(piece) > left:
                break
            hay.append(piece)
            left -= len(piece)
        rows = [(-1, piece) for piece in hay] + pieces
        draft.rng.shuffle(rows)
        ids: list[int] = []
        spans: list[list[Span]] = [[] for _ in range(draft.n_questions)]
        for owner, piece in rows:
            if owner >= 0:
                spans[owner].append((len(ids), len(ids) + len(piece)))
            ids += piece
        ids += make_haystack(draft.tokenizer, NOISE, left, draft.rng).ids
        return Context(ids, tuple(map(tuple, spans)))


def insert(hay: list[int], placed: list[tuple[int, int, list[int]]], n_questions: int) -> Context:
    """Put pieces (offset in `hay`, number of their question or -1, tokens) into a haystack, and note where they stand."""
    ids: list[int] = []
    spans: list[list[Span]] = [[] for _ in range(n_questions)]
    done = 0
    for offset, owner, piece in sorted(placed, key=lambda item: item[0]):
        ids += hay[done:offset]
        done = offset
        if owner >= 0:
            spans[owner].append((len(ids), len(ids) + len(piece)))
        ids += piece
    return Context(ids + hay[done:], tuple(map(tuple, spans)))


def needle_task(name: str, label: str, needles: Needles) -> LongTask:
    """Return the task of some needles, in the original's words."""
    some = f"A special magic {needles.kind} is" if needles.single else f"Some special magic {needles.kind}s are"
    asked = f"the {needles.kind}" if needles.single else f"the {needles.kind}s"
    return LongTask(
        name=name,
        label=label,
        family="multi-key"
        if needles.keys > 1 and needles.single
        else "several values"
        if not needles.single
        else "single",
        lead=f"{some} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about {asked} afterwards.\n",
        new_tokens=NEW_TOKENS,
        haystack=needles.haystack,
        sample=needles.sample,
        draw=needles.draw,
        reuse=needles.single and needles.keys > 1,
        reads=long_context.TEXT if needles.haystack == TEXT else "",
    )
