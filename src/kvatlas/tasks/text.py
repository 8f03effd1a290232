"""Haystacks: seeded text of an exact token count, cut at sentence boundaries.

It must not know questions, needles or modes; only sentences and how many tokens each one takes.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import Tokenizer, encode, encode_text
from kvatlas.tasks import words

HAYSTACKS = ("sentences", "corpus", "noise")

# A boundary farther than this from the wanted depth is ignored and the needle goes between two words instead.
_MAX_SHIFT = 32
# Draws spent on finding a sentence that ends a haystack exactly; after that the last sentence is cut.
_FIT_DRAWS = 400


@dataclass(frozen=True)
class Haystack:
    """Token ids of consecutive sentences; each sentence starts with a space, so any order of them is valid text."""

    sentences: tuple[tuple[int, ...], ...]

    @property
    def ids(self) -> list[int]:
        """All token ids."""
        return [token for sentence in self.sentences for token in sentence]

    def offset_at(self, depth: float) -> int:
        """Token offset of `depth` percent, moved to the nearest sentence boundary when one is near.

        depth: share of the haystack's tokens in percent, 0 to 100.
        """
        boundaries = [0]
        for sentence in self.sentences:
            boundaries.append(boundaries[-1] + len(sentence))
        target = round(boundaries[-1] * depth / 100)
        nearest = min(boundaries, key=lambda boundary: (abs(boundary - target), boundary))
        return nearest if abs(nearest - target) <= _MAX_SHIFT else target


def rng_for(*parts: object) -> random.Random:
    """A random generator seeded by a stable hash of `parts`: the same in every process and on every machine."""
    digest = hashlib.sha256("|".join(str(part) for part in parts).encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def draw_sentence(rng: random.Random) -> str:
    """One factual-sounding sentence from the templates of `words`."""
    template = rng.choice(words.TEMPLATES)
    name, name2 = rng.sample(words.NAMES, 2)
    town, town2 = rng.sample(words.TOWNS, 2)
    thing, thing2 = rng.sample(words.THINGS, 2)
    goods, goods2 = rng.sample(words.GOODS, 2)
    return template.format(
        name=name,
        name2=name2,
        town=town,
        town2=town2,
        thing=thing,
        thing2=thing2,
        goods=goods,
        goods2=goods2,
        goods_cap=goods.capitalize(),
        trade=rng.choice(words.TRADES),
        material=rng.choice(words.MATERIALS),
        animals=rng.choice(words.ANIMALS),
        season=rng.choice(words.SEASONS),
        mood=rng.choice(words.MOODS),
        weather=rng.choice(words.WEATHERS),
        subject=rng.choice(words.SUBJECTS),
        count=rng.choice(words.COUNTS),
        year=rng.randint(1712, 1968),
    )


def split_sentences(text: str) -> list[str]:
    """Sentences of a natural text, white space collapsed."""
    parts = re.split(r"(?<=[.!?])[\"')\]]*\s+|\n\s*\n", text)
    return [sentence for part in parts if (sentence := " ".join(part.split()))]


def make_haystack(
    tokenizer: Tokenizer, kind: str, n_tokens: int, rng: random.Random, corpus: Sequence[str] | None = None
) -> Haystack:
    """Draw a haystack of exactly `n_tokens` tokens.

    kind: `sentences` (generated), `noise` (five repeated sentences) or `corpus` (a random run of `corpus`, which is
    the output of `split_sentences`). Raises KvatlasError for an unknown kind and an empty or too short corpus.
    """
    if kind == "sentences":
        return Haystack(tuple(_generated(tokenizer, n_tokens, rng)))
    if kind == "noise":
        start = rng.randrange(len(words.NOISE))
        encoded = [tuple(encode(tokenizer, " " + text)) for text in words.NOISE]
        return Haystack(tuple(_cut(_cycle(encoded, start), n_tokens)))
    if kind == "corpus":
        return Haystack(tuple(_corpus_run(tokenizer, n_tokens, rng, corpus or ())))
    raise KvatlasError(f"haystack: unknown {kind!r}; choose one of {', '.join(HAYSTACKS)}")


def fill(
    tokenizer: Tokenizer, n_tokens: int, draw: Callable[[], str], *, draws: int = _FIT_DRAWS
) -> list[tuple[int, ...]]:
    """Draw sentences of exactly `n_tokens` tokens in all, ending at a sentence boundary when the draws allow it."""
    sentences: list[tuple[int, ...]] = []
    left = n_tokens
    spare = draws
    while left > 0:
        sentence = tuple(encode(tokenizer, " " + draw()))
        # A remainder under three tokens could not be a sentence, so it is left only when the draws run out.
        if len(sentence) == left or left - len(sentence) > 2:
            sentences.append(sentence)
            left -= len(sentence)
        elif spare > 0:
            spare -= 1
        else:
            sentences.append(sentence[:left])
            left -= len(sentences[-1])
    return sentences


def _generated(tokenizer: Tokenizer, n_tokens: int, rng: random.Random) -> list[tuple[int, ...]]:
    previous = ""

    def draw() -> str:
        nonlocal previous
        sentence = draw_sentence(rng)
        while sentence == previous:
            sentence = draw_sentence(rng)
        previous = sentence
        return sentence

    return fill(tokenizer, n_tokens, draw)


def _corpus_run(
    tokenizer: Tokenizer, n_tokens: int, rng: random.Random, corpus: Sequence[str]
) -> Iterator[tuple[int, ...]]:
    if not corpus:
        raise KvatlasError("haystack: corpus needs text, but the corpus is empty; name another text or use sentences")
    encoded = [tuple(encode_text(tokenizer, " " + sentence)) for sentence in corpus]
    left = 0
    starts = 0
    for index in range(len(encoded) - 1, -1, -1):
        left += len(encoded[index])
        if left >= n_tokens:
            starts = index + 1
            break
    if not starts:
        raise KvatlasError(
            f"haystack: the corpus has {left} tokens but contexts needs {n_tokens}; use a longer text or a shorter context"
        )
    start = rng.randrange(starts)
    return _cut(iter(encoded[start:]), n_tokens)


def _cycle(sentences: Sequence[tuple[int, ...]], start: int) -> Iterator[tuple[int, ...]]:
    index = start
    while True:
        yield sentences[index % len(sentences)]
        index += 1


def _cut(sentences: Iterator[tuple[int, ...]], n_tokens: int) -> Iterator[tuple[int, ...]]:
    left = n_tokens
    while left > 0:
        sentence = next(sentences)[:left]
        left -= len(sentence)
        yield sentence
