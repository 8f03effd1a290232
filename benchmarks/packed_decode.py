"""Decode speed of packed caches against fp32 at a given number of slots, in paired rounds, and what reading them holds.

    python -m benchmarks.packed_decode --model resources/models/smollm2-135m --slots 4096

One prompt is prefilled once in the model's own numbers and written through every quantizer. Each round decodes a few tokens
with every quantizer in turn, so that the machine's moods hit all of them; what is reported is the median of the rounds'
ratios with its range. Memory is counted over the tensors that one decode step allocates and frees, per step, beyond
the cache itself: it holds one layer's decoded keys and values at a time, not those of the whole cache. Codes are decoded to
floats for every read here, so packed caches save bytes and cost time; no low-precision kernel is used.
"""

from __future__ import annotations

import argparse
import statistics
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common import save
from kvatlas.compression.apply import quantize
from kvatlas.compression.build import make_store
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel


class Allocations(TorchDispatchMode):
    """Counts the bytes of new storages that are alive at the same time, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[int, int]] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor, known)
        return out

    def _count(self, tensor: torch.Tensor, known: set[int]) -> None:
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        size, users = self.live.get(key, (0, 0))
        if not users and key in known:
            return  # a view of something that was there before the count began
        if not users:
            size = storage.nbytes()
            self.now += size
            self.peak = max(self.peak, self.now)
        self.live[key] = (size, users + 1)
        weakref.finalize(tensor, self._release, key)

    def _release(self, key: int) -> None:
        size, users = self.live.get(key, (0, 0))
        if users <= 1:
            self.live.pop(key, None)
            self.now -= size
        else:
            self.live[key] = (size, users - 1)


def decode(lm: LanguageModel, cache: CompressedCache, steps: int) -> float:
    """Decode `steps` tokens greedily on a fork; return seconds per token, the first one left out."""
    fork, token = cache.fork(), torch.zeros(1, 1, dtype=torch.long, device=lm.device)
    seconds = []
    for _ in range(steps + 1):
        started = time.perf_counter()
        token = lm.log_probs(lm.forward(token, fork)[:, -1]).argmax(dim=-1, keepdim=True)
        if lm.device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def read_memory(lm: LanguageModel, cache: CompressedCache) -> dict[str, float]:
    """Return MiB: the most that reading any single layer allocates, and the floats of one layer and of all layers."""
    peaks = []
    for layer in cache.layers:
        with Allocations() as counted:
            read = layer.store.read()
        peaks.append(counted.peak)
        del read
    keys, values = cache.layers[0].store.read()
    layer_floats = keys.nbytes + values.nbytes
    del keys, values
    with Allocations() as counted:
        lm.forward(torch.zeros(1, 1, dtype=torch.long, device=lm.device), cache.fork())
    mib = 2**20
    return {
        "read_peak_mib": max(peaks) / mib,
        "step_peak_mib": counted.peak / mib,
        "layer_floats_mib": layer_floats / mib,
        "all_layers_floats_mib": layer_floats * len(cache.layers) / mib,
    }


def main() -> None:
    """Run the benchmark and keep its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder in hub layout")
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="timed tokens per round and quantizer")
    parser.add_argument("--quantizers", nargs="+", default=["none", "int8", "int4", "kivi4"])
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        lm = LanguageModel.load(options.model, "auto", "fp32")
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(1000, lm.model.config.vocab_size, (1, options.slots), generator=generator).to(lm.device)
        full = lm.new_cache()
        lm.prefill(ids, full, 512)
        caches = {name: full.fork() for name in options.quantizers}
        for name, cache in caches.items():
            if name != "none":
                quantize(cache, make_store(name))
        rounds = [
            {name: decode(lm, cache, options.steps) for name, cache in caches.items()} for _ in range(options.rounds)
        ]
        memory = {name: read_memory(lm, cache) for name, cache in caches.items()}
    first = options.quantizers[0]
    rows = []
    for name, cache in caches.items():
        ratios = [round_[name] / round_[first] for round_ in rounds]
        measures = {
            "cache_mib": cache.payload_nbytes / 2**20,
            "tokens_per_s": 1 / statistics.median(round_[name] for round_ in rounds),
            "time_ratio": statistics.median(ratios),
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
            **memory[name],
        }
        rows.append({"quantizer": name} | {key: round(value, 2) for key, value in measures.items()})
    about = {"slots": options.slots, "threads": options.threads, "device": lm.device.type, "rounds": options.rounds}
    save("packed_decode", rows, **about)


if __name__ == "__main__":
    main()
