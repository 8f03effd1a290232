"""Decode speed of the full cache at several lengths, against concatenation at every step and transformers' own caches.

    python -m benchmarks.decode --model resources/models/smollm2-135m --sizes 20x512 1x4096 1x16384

Every cache is filled with the same random keys and values, which no time depends on, and decodes greedily with the same
weights. Each round decodes a few tokens with every cache in turn, so that the machine's moods hit all of them; what is
reported is the median of the rounds' ratios to the growing store, with its range. `first step` makes room in a buffer, and
so copies the cache once; it comes again when the room is used up. `reserved` is what a cache holds with that room.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from benchmarks.common import save
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.stores import PlainStore

GROWING = "kvatlas, growing"
Filling = Callable[[int], tuple[Tensor, Tensor]]


class ConcatenatedStore(PlainStore):
    """Keys and values that are copied whole at every write."""

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write new slots behind a copy of the others."""
        old = self.read()
        self.replace(torch.cat([old[0], keys], dim=2), torch.cat([old[1], values], dim=2))


class Ours:
    """Decodes with a `CompressedCache`."""

    def __init__(self, lm: LanguageModel, store: type[PlainStore], fill: Filling) -> None:
        self.lm, self.cache = lm, CompressedCache(lm.n_layers)
        for index, layer in enumerate(self.cache.layers):
            layer.store = store(*fill(index))
            layer.n_slots = self.cache.tokens_written = layer.store.read()[0].shape[2]

    def step(self, token: Tensor) -> Tensor:
        """Return the next tokens, `[B, 1]`."""
        return self.lm.log_probs(self.lm.forward(token, self.cache)[:, -1]).argmax(dim=-1, keepdim=True)

    def nbytes(self) -> tuple[int, int]:
        """Return the bytes in use and the bytes held."""
        return self.cache.nbytes, self.cache.reserved_nbytes


class Theirs:
    """Decodes with a cache of transformers and its attention."""

    def __init__(self, model: Any, cache: Any, fill: Filling) -> None:
        self.model, self.cache = model, cache
        for index in range(model.config.num_hidden_layers):
            keys, values = fill(index)
            cache.update(keys, values, index)
        self.slots = keys.shape[2]

    def step(self, token: Tensor) -> Tensor:
        """Return the next tokens, `[B, 1]`."""
        positions = torch.tensor([[self.slots]], device=token.device)
        self.slots += 1
        hidden = self.model.base_model(input_ids=token, cache=self.cache, position_ids=positions, use_cache=True)
        head = self.model.get_output_embeddings()
        logits = torch.log_softmax(head(hidden.last_hidden_state[:, -1]).float(), dim=-1)
        return logits.argmax(dim=-1, keepdim=True)

    def nbytes(self) -> tuple[int, int]:
        """Return the bytes in use and the bytes held."""
        held = [tensor for layer in self.cache.layers for tensor in (layer.keys, layer.values)]
        return sum(t.nbytes // t.shape[2] * self.slots for t in held), sum(t.nbytes for t in held)


def decode(decoder: Ours | Theirs, prompts: int, steps: int) -> list[float]:
    """Decode `steps` tokens; return the seconds of each."""
    token, seconds = torch.zeros(prompts, 1, dtype=torch.long), []
    for _ in range(steps):
        started = time.perf_counter()
        token = decoder.step(token)
        seconds.append(time.perf_counter() - started)
    return seconds


def measure(
    lm: LanguageModel, plain: Any, prompts: int, slots: int, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return the rows of one size."""
    config = plain.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads

    def fill(layer: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randn(2, prompts, config.num_key_value_heads, slots, width, generator=torch.manual_seed(layer))
        return drawn[0].clone(), drawn[1].clone()

    decoders: dict[str, Ours | Theirs] = {
        GROWING: Ours(lm, PlainStore, fill),
        "kvatlas, concatenated": Ours(lm, ConcatenatedStore, fill),
        "DynamicCache": Theirs(plain, DynamicCache(), fill),
        "StaticCache": Theirs(plain, StaticCache(config, slots + 1 + options.rounds * options.steps), fill),
    }
    first = {name: decode(decoder, prompts, 1)[0] for name, decoder in decoders.items()}
    rounds = [
        {name: statistics.median(decode(decoder, prompts, options.steps)) for name, decoder in decoders.items()}
        for _ in range(options.rounds)
    ]
    rows = []
    for name, decoder in decoders.items():
        ratios = [each[name] / each[GROWING] for each in rounds]
        used, held = decoder.nbytes()
        numbers = {
            "first_step_seconds": first[name],
            "step_seconds": statistics.median(each[name] for each in rounds),
            "time_ratio": statistics.median(ratios),
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
            "used_mib": used / 2**20,
            "reserved_mib": held / 2**20,
        }
        rows.append({"cache": name, "prompts": prompts, "slots": slots} | {k: round(v, 3) for k, v in numbers.items()})
    return rows


def main() -> None:
    """Run the benchmark and keep its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder in hub layout")
    parser.add_argument("--sizes", nargs="+", default=["20x512", "1x4096", "1x16384"], help="prompts x slots")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="timed tokens per round and cache")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--print", action="store_true", help="print the rows and keep nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    with torch.inference_mode():
        lm = LanguageModel.load(options.model, "cpu", "fp32")
        plain = AutoModelForCausalLM.from_pretrained(
            options.model, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        ).eval()
        # Only times are taken: positions past the model's limit say nothing, and cost what others do.
        lm.model.config.max_position_embeddings = 1 << 20
        for size in options.sizes:
            prompts, slots = map(int, size.split("x"))
            rows += measure(lm, plain, prompts, slots, options)
            if options.print:
                print(*rows[-4:], sep="\n", flush=True)
    if not options.print:
        about = {"threads": options.threads, "device": "cpu", "rounds": options.rounds, "model": options.model.name}
        save("decode", rows, **about)


if __name__ == "__main__":
    main()
