"""One fact in a haystack and a question about it: how needle and passkey prompts are laid out, token by token.

The layout is the chat template's head with the system prompt, the haystack with the fact, then the question. It must not
know what the facts are about, nor models and caches.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import SLOT, Message, Tokenizer, encode, encode_pieces, message
from kvatlas.tasks.text import Haystack, make_haystack, rng_for, split_sentences

MODES = ("aware", "agnostic", "reuse", "no_context")

_SHAPE_SAMPLE = 64
_MAX_DRAWS = 5000


@dataclass(frozen=True)
class Fact:
    """A sentence for the haystack, the question about it, the answer that is scored and the gold reply around it."""

    sentence: str
    question: str
    answer: str
    reply: str
    key: str


@dataclass(frozen=True)
class Wording:
    """The fixed words of a study: system prompt, and the lead-in that stands before the haystack."""

    study: str
    system: str
    lead: str


Draw = Callable[[random.Random], Fact]


class FactTask:
    """Makes the prompts of one study for one tokenizer; every prompt is a function of (context, seed, depth, haystack).

    draw: draws the fact that is asked for. draw_other: draws the fact of the first question of mode `reuse`.
    Facts are drawn again until they have the commonest token counts, so that all prompts of a file line up.
    """

    def __init__(self, tokenizer: Tokenizer, wording: Wording, draw: Draw, draw_other: Draw) -> None:
        self._tokenizer = tokenizer
        self._wording = wording
        self._draw = draw
        self._draw_other = draw_other
        self._shapes: dict[Draw, tuple[int, ...]] = {}

    def prompts(
        self,
        *,
        mode: str,
        context: int,
        seeds: Sequence[int],
        depths: Sequence[float] | None,
        haystack: str,
        corpus: str | None,
    ) -> list[dict[str, Any]]:
        """All prompts of seeds x depths (one drawn depth per seed when `depths` is None), seeds outermost."""
        if mode not in MODES:
            raise KvatlasError(f"modes: unknown {mode!r}; choose one of {', '.join(MODES)}")
        for depth in depths or ():
            if not 0 <= depth <= 100:
                raise KvatlasError(f"depths: {depth} is not a share of the haystack; use 0 to 100 (percent)")
        sentences = split_sentences(corpus or "") if haystack == "corpus" else None
        rows = []
        for seed in seeds:
            chosen_depths = depths or [rng_for(self._wording.study, haystack, context, seed, "depth").randrange(101)]
            hay: Haystack | None = None
            for depth in chosen_depths:
                facts = self._facts(mode, context, seed, depth, haystack, corpus or "")
                pieces = self._pieces(mode, facts)
                if mode != "no_context" and hay is None:
                    hay = self._haystack(pieces, facts, context, seed, haystack, sentences)
                row = self._compose(mode, facts, pieces, hay, depth, (context, seed, haystack))
                rows.append(self._identity(mode, context, seed, depth, haystack) | row)
        return rows

    def _identity(self, mode: str, context: int, seed: int, depth: float, haystack: str) -> dict[str, Any]:
        study = self._wording.study
        return {
            "id": f"{study}-{haystack}-{context}-s{seed}-d{depth:g}",
            "study": study,
            "mode": mode,
            "context": context,
            "seed": seed,
            "depth": depth,
            "haystack": haystack,
        }

    def _facts(self, mode: str, context: int, seed: int, depth: float, haystack: str, corpus: str) -> list[Fact]:
        """The fact that is asked for; before it, in mode `reuse`, the other one."""
        rng = rng_for(self._wording.study, context, seed, f"{depth:g}", haystack, "fact")
        asked = self._draw_fitting(self._draw, rng, corpus, taken="")
        if mode != "reuse":
            return [asked]
        return [self._draw_fitting(self._draw_other, rng, corpus, taken=asked.key), asked]

    def _draw_fitting(self, draw: Draw, rng: random.Random, corpus: str, taken: str) -> Fact:
        shape = self._shape(draw)
        for _ in range(_MAX_DRAWS):
            fact = draw(rng)
            known = fact.key == taken or fact.answer in corpus or fact.key in corpus
            if not known and self._measure(fact) == shape:
                return fact
        raise KvatlasError("haystack: the corpus already holds the words or codes of every needle; use another text")

    def _shape(self, draw: Draw) -> tuple[int, ...]:
        if draw not in self._shapes:
            rng = rng_for("shape")
            counts = Counter(self._measure(draw(rng)) for _ in range(_SHAPE_SAMPLE))
            self._shapes[draw] = max(counts, key=lambda shape: (counts[shape], shape))
        return self._shapes[draw]

    def _measure(self, fact: Fact) -> tuple[int, ...]:
        # The layout of mode reuse, because it holds a fact's question before and after other text.
        pieces = self._pieces("reuse", [fact, fact])
        return len(encode(self._tokenizer, " " + fact.sentence)), *(len(piece) for piece in pieces)

    def _pieces(self, mode: str, facts: Sequence[Fact]) -> list[list[int]]:
        """Token ids before the haystack, after it up to the first reply, and from there to the asked-for reply."""
        wording = self._wording
        system = message("system", wording.system)
        first = facts[0]
        if mode == "no_context":
            return encode_pieces(self._tokenizer, [system, message("user", first.question)])
        messages: list[Message] = [system, message("user", f"{wording.lead}{SLOT}\n\n{first.question}")]
        if mode == "reuse":
            messages += [message("assistant", SLOT + first.reply), message("user", facts[1].question)]
        return encode_pieces(self._tokenizer, messages)

    def _haystack(
        self,
        pieces: Sequence[Sequence[int]],
        facts: Sequence[Fact],
        context: int,
        seed: int,
        haystack: str,
        sentences: Sequence[str] | None,
    ) -> Haystack:
        fixed = sum(map(len, pieces)) + sum(len(encode(self._tokenizer, " " + fact.sentence)) for fact in facts)
        # One token of haystack per fact is the least that still has a depth.
        if context - fixed < len(facts):
            raise KvatlasError(
                f"contexts: {context} tokens are too few for the chat template, needle and question ({fixed}); "
                f"use at least {fixed + 64}"
            )
        rng = rng_for(self._wording.study, context, seed, haystack, "haystack")
        return make_haystack(self._tokenizer, haystack, context - fixed, rng, sentences)

    def _compose(
        self,
        mode: str,
        facts: Sequence[Fact],
        pieces: Sequence[list[int]],
        hay: Haystack | None,
        depth: float,
        haystack_key: tuple[object, ...],
    ) -> dict[str, Any]:
        asked = facts[-1]
        ids = list(pieces[0])
        span = None
        if hay is not None:
            body, start, length = self._insert(facts, hay, depth, haystack_key)
            span = [len(ids) + start, len(ids) + start + length]
            ids += body
            n_context = len(ids)
            ids += [token for piece in pieces[1:] for token in piece]
        n_compress = len(ids) - 1
        if hay is not None and mode == "agnostic":
            n_compress = n_context
        if hay is not None and mode == "reuse":
            n_compress = n_context + len(pieces[1])
        return {
            "ids": ids,
            "n_compress": n_compress,
            "span": span,
            "answer": asked.answer,
            "answer_ids": encode(self._tokenizer, asked.reply),
            "text": asked.question,
        }

    def _insert(
        self, facts: Sequence[Fact], hay: Haystack, depth: float, haystack_key: tuple[object, ...]
    ) -> tuple[list[int], int, int]:
        """The haystack with the facts in it, the asked-for fact's offset in it and its token count."""
        needle = encode(self._tokenizer, " " + facts[-1].sentence)
        at = hay.offset_at(depth)
        body = hay.ids
        body[at:at] = needle
        if len(facts) == 1:
            return body, at, len(needle)
        other = encode(self._tokenizer, " " + facts[0].sentence)
        # The other fact stands in the other half of the haystack, so that the two are never side by side.
        rng = rng_for(self._wording.study, *haystack_key, f"{depth:g}", "other")
        other_at = hay.offset_at((depth + rng.uniform(35, 65)) % 100)
        if other_at >= at:
            body[other_at + len(needle) : other_at + len(needle)] = other
        else:
            body[other_at:other_at] = other
            at += len(other)
        return body, at, len(needle)
