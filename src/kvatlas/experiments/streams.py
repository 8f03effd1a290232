"""Streams: one pass of a text through a cache, every next token scored, under one of three protocols.

`online`: the stream is read in causal blocks, and the cache is brought back to its budget after each. `prefill`: the
first half is written at once and compressed once, and the second half is scored from what is left. `single`: one forward
pass over the whole stream, as perplexity is usually measured; compression comes too late to change anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor
from tqdm import tqdm

from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.chat import bos_ids, encode_text
from kvatlas.lm.loading import LanguageModel

PROTOCOLS = ("single", "prefill", "online")
# Predictions whose log-probabilities over the vocabulary are in memory at the same time.
SCORED_TOGETHER = 256


def stream_ids(lm: LanguageModel, text: str, tokens: int, passages: int = 1) -> Tensor:
    """Return the first passages of `tokens` tokens of `text`, one after the other, `[1, passages x tokens]`.

    Where the tokenizer itself begins a text with a token (BOS), each passage begins with it, and it is one of its
    tokens. Raises KvatlasError when the text is shorter.
    """
    bos = bos_ids(lm.tokenizer)
    own = tokens - len(bos)
    needed = passages * own
    # A token has at least one byte: encoding a little more than needed saves minutes on long texts.
    ids = encode_text(lm.tokenizer, text[: 16 * needed + 1024])
    if len(ids) < needed:
        ids = encode_text(lm.tokenizer, text)
    if len(ids) < needed:
        raise KvatlasError(f"tokens: the text has {len(ids)} tokens, not {needed}; use a longer text or fewer tokens")
    return lm.ids([[token for start in range(0, needed, own) for token in [*bos, *ids[start : start + own]]]])


@dataclass
class Stream:
    """One pass of a stream through a cache.

    Prediction i is that of token i + 1, made by the query at token i.

    Args:
        ids: `[1, T]`. compress: brings the cache back to its budget.
    """

    lm: LanguageModel
    ids: Tensor
    cache: CompressedCache
    compress: Callable[[CompressedCache], None]
    nlls: list[float] = field(default_factory=list)
    hits: list[bool] = field(default_factory=list)
    first_prediction: int = 0
    first_compressed: int | None = None
    peak_slots: int = 0

    def read(self, protocol: str, block: int) -> None:
        """Read and score the stream as one of `PROTOCOLS` says; `block` tokens at a time where it reads in blocks."""
        if protocol == "online":
            self._online(block)
        else:
            {"prefill": self._prefill, "single": self._single}[protocol]()

    def _online(self, block: int) -> None:
        for start in tqdm(range(0, self.ids.shape[1], block), desc="stream", unit="block"):
            self._score(start, min(start + block, self.ids.shape[1]))
            self._shrink()

    def _prefill(self) -> None:
        half = self.ids.shape[1] // 2
        self._write(0, half)
        self._shrink()
        self.first_prediction = half
        self._score(half, self.ids.shape[1])

    def _single(self) -> None:
        self._score(0, self.ids.shape[1])
        self._shrink()
        # It was compressed when everything was scored.
        self.first_compressed = None

    def _write(self, start: int, stop: int) -> Tensor:
        hidden = self.lm.forward(self.ids[:, start:stop], self.cache)
        self.peak_slots = max(self.peak_slots, *(layer.n_slots for layer in self.cache.layers))
        return hidden[0]

    def _score(self, start: int, stop: int) -> None:
        hidden, targets = self._write(start, stop), self.ids[0, start + 1 : stop + 1]
        chunks = zip(hidden[: len(targets)].split(SCORED_TOGETHER), targets.split(SCORED_TOGETHER))  # noqa: B905
        for states, target in chunks:
            log_probs = self.lm.log_probs(states)
            self.nlls += (-log_probs.gather(1, target[:, None])[:, 0]).tolist()
            self.hits += (log_probs.argmax(dim=1) == target).tolist()

    def _shrink(self) -> None:
        before = [layer.n_slots for layer in self.cache.layers]
        self.compress(self.cache)
        # The last token predicts nothing: a cache that becomes smaller then made no prediction.
        late = self.cache.tokens_written >= self.ids.shape[1] - 1
        if self.first_compressed is None and not late and before != [layer.n_slots for layer in self.cache.layers]:
            self.first_compressed = self.cache.tokens_written
