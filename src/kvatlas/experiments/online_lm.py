"""Online language modelling cell: one token stream through one arm, every next token scored.

Protocol `online`: the stream is read in causal blocks, and the cache is brought back to its budget after each. `prefill`:
the first half is written at once and compressed once, and the second half is scored from what is left. `single`: one
forward pass over the whole stream, as perplexity is usually measured; compression comes too late to change anything.
One trial per cell, with the NLL and the hit of every prediction. A study may read several passages, each as a stream of
its own with a cache of its own; their predictions follow each other in the trial.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy, make_store
from kvatlas.errors import KvatlasError
from kvatlas.experiments.cellfile import Stopwatch, write_cell
from kvatlas.lm.cache import CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel

# Predictions whose log-probabilities over the vocabulary are in memory at the same time.
SCORED_TOGETHER = 256
_PLACE = ("study", "model", "arm", "method", "budget", "quantizer", "protocol", "tokens", "block", "text")


def stream_ids(lm: LanguageModel, text: str, tokens: int) -> Tensor:
    """Return the first `tokens` tokens of `text`, `[1, tokens]`, without special tokens.

    Raises KvatlasError when the text is shorter.
    """
    # A token has at least one byte: encoding a little more than needed saves minutes on long texts.
    part = text[: 16 * tokens + 1024]
    ids: list[int] = lm.tokenizer.encode(part, add_special_tokens=False, verbose=False)
    if len(ids) < tokens:
        ids = lm.tokenizer.encode(text, add_special_tokens=False, verbose=False)
    if len(ids) < tokens:
        raise KvatlasError(f"tokens: the text has {len(ids)} tokens, not {tokens}; use a longer text or fewer tokens")
    return lm.ids([ids[:tokens]])


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

    def online(self, block: int) -> None:
        """Read blocks of `block` tokens, score each, and compress after it."""
        for start in tqdm(range(0, self.ids.shape[1], block), desc="stream", unit="block"):
            self._score(start, min(start + block, self.ids.shape[1]))
            self._shrink()

    def prefill(self) -> None:
        """Write the first half, compress, and score the second half in one block."""
        half = self.ids.shape[1] // 2
        self._write(0, half)
        self._shrink()
        self.first_prediction = half
        self._score(half, self.ids.shape[1])

    def single(self) -> None:
        """Score everything in one forward pass, and compress when it is over."""
        self._score(0, self.ids.shape[1])
        self._shrink()
        self.first_compressed = None

    def _write(self, start: int, stop: int) -> Tensor:
        hidden = self.lm.forward(self.ids[:, start:stop], self.cache)
        self.peak_slots = max(self.peak_slots, *(layer.n_slots for layer in self.cache.layers))
        return hidden[0]

    def _score(self, start: int, stop: int) -> None:
        hidden, targets = self._write(start, stop), self.ids[0, start + 1 : stop + 1]
        for part, target in zip(hidden[: len(targets)].split(SCORED_TOGETHER), targets.split(SCORED_TOGETHER)):  # noqa: B905
            log_probs = self.lm.log_probs(part)
            self.nlls += (-log_probs.gather(1, target[:, None])[:, 0]).tolist()
            self.hits += (log_probs.argmax(dim=1) == target).tolist()

    def _shrink(self) -> None:
        before = [layer.n_slots for layer in self.cache.layers]
        self.compress(self.cache)
        if self.first_compressed is None and before != [layer.n_slots for layer in self.cache.layers]:
            self.first_compressed = self.cache.tokens_written


def run(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Stream the text `inputs["text"]` through the model folder `inputs["model"]` and write the cell's trial."""
    watch = Stopwatch()
    policy = make_policy(spec["policy"])
    with torch.inference_mode():
        with watch.part("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
            passages = spec.get("passages", 1)
            ids = stream_ids(lm, inputs["text"].read_text(encoding="utf-8"), passages * spec["tokens"])
        budget = Budget.from_spec(spec) if policy else None
        streams = [
            Stream(
                lm,
                passage,
                lm.new_cache(policy.observation() if policy else Observation(), make_store(spec["quantizer"])),
                Compressor(policy, budget, spec["tokens"], lm.rotary, [0]),
            )
            for passage in ids.split(spec["tokens"], dim=1)
        ]
        with watch.part("stream"):
            for stream in streams:
                if spec["protocol"] == "online":
                    stream.online(spec["block"])
                else:
                    {"prefill": stream.prefill, "single": stream.single}[spec["protocol"]]()
    watch.record |= {"device": lm.device.type, "dtype": str(lm.dtype).removeprefix("torch.")}
    watch.record["stream_tokens_per_s"] = ids.shape[1] / watch.record["stream_seconds"]
    write_cell(output, spec, [trial_of(spec, streams)])
    watch.write(output)


def trial_of(spec: Mapping[str, Any], streams: Sequence[Stream]) -> dict[str, Any]:
    """Return the trial of finished streams of equal length, as plain numbers; sizes are bytes of one stream."""
    stream = streams[-1]
    layers = stream.cache.layers
    keys = layers[0].store.read()[0]
    place = {key: spec[key] for key in _PLACE}
    return place | {
        "id": f"{spec['text']}-{spec['tokens']}",
        "policy": spec["policy"]["name"],
        "protection": spec.get("protection", "base"),
        **{key: spec[key] for key in ("n_sinks", "n_recent", "skip_layers")},
        "reindexed": stream.cache.reindexed,
        "first_prediction": stream.first_prediction,
        "first_compressed": stream.first_compressed,
        "passages": len(streams),
        "nlls": [nll for each in streams for nll in each.nlls],
        "hits": [hit for each in streams for hit in each.hits],
        "slots": statistics.fmean(layer.n_slots for layer in layers),
        "peak_slots": stream.peak_slots,
        "resident_bytes": stream.cache.nbytes,
        "payload_bytes": stream.cache.payload_nbytes,
        "peak_bytes": max(stream.cache.peak_nbytes, stream.cache.nbytes),
        "full_bf16_bytes": 2 * 2 * len(layers) * keys.shape[1] * keys.shape[3] * spec["tokens"],
        "tokens_written": stream.cache.tokens_written,
    }
