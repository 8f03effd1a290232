"""What bringing a group's cache to its budget costs, by method, in paired rounds: selecting slots against merging them.

    python -m benchmarks.compress --model resources/models/smollm2-135m --prompts 20 --tokens 512

The prompts are random tokens, prefilled once with the statistics that each method reads. Each round compresses a fork with
every method in turn, so that the machine's moods hit all of them; what is reported is the median of the rounds' times, and
of their ratios to the first method with its range.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import torch

from benchmarks.common import save
from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel

METHODS = ["snapkv", "keydiff", "emeans_post_rope", "emeans_pre_rope", "snapkv_emeans"]


def compressed(lm: LanguageModel, cache: CompressedCache, method: str, budget: str) -> float:
    """Compress a fork of a full cache; return the seconds."""
    fork, seeds = cache.fork(), [0] * cache.layers[0].positions().shape[0]
    bring = Compressor(make_policy({"name": method}), Budget(budget, 4, 32), cache.tokens_written, lm.rotary, seeds)
    started = time.perf_counter()
    bring(fork)
    return time.perf_counter() - started


def main() -> None:
    """Run the benchmark and keep its numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="model folder in hub layout")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--budget", default="4x")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--print", action="store_true", help="print the rows and keep nothing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with torch.inference_mode():
        lm = LanguageModel.load(options.model, "cpu", "fp32")
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(1000, lm.model.config.vocab_size, (options.prompts, options.tokens), generator=generator)
        caches = {}
        for method in METHODS:
            policy = make_policy({"name": method})
            caches[method] = lm.new_cache(policy.observation() if policy else None)
            lm.prefill(ids, caches[method])
        rounds = [
            {method: compressed(lm, cache, method, options.budget) for method, cache in caches.items()}
            for _ in range(options.rounds)
        ]
    rows = []
    for method in METHODS:
        ratios = [each[method] / each[METHODS[0]] for each in rounds]
        numbers = {
            "compress_seconds": statistics.median(each[method] for each in rounds),
            "time_ratio": statistics.median(ratios),
            "lowest_ratio": min(ratios),
            "highest_ratio": max(ratios),
        }
        rows.append({"method": method} | {key: round(value, 3) for key, value in numbers.items()})
    if options.print:
        print(*rows, sep="\n")
        return
    about = {key: getattr(options, key) for key in ("prompts", "tokens", "budget", "rounds", "threads")}
    save("compress", rows, model=options.model.name, **about)


if __name__ == "__main__":
    main()
