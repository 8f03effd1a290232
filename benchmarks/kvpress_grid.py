"""The same small grid per arm by kvatlas and by kvpress: `python -m benchmarks.kvpress_grid --model FOLDER`.

Both compress equal prompts to the same number of slots and answer greedily. kvpress prefills each prompt again for each
arm, as its evaluation does; kvatlas prefills all prompts once as a batch, and every arm forks that cache. kvpress 0.5.2
expects older names of transformers' arguments; the hook of tests/parity gives it those. Its caches are answered by our
own greedy loop, so that only prefill, compression and the size of the batch differ.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import kvpress
import torch
from transformers import DynamicCache

from benchmarks.common import save
from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
from kvatlas.experiments.decoding import greedy
from kvatlas.lm.attention import ATTENTION_NAME
from kvatlas.lm.cache import CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.stores import PlainStore

WINDOW = 16
RATIO = 4
ARMS = {
    "snapkv": lambda ratio: kvpress.SnapKVPress(compression_ratio=ratio, window_size=WINDOW, kernel_size=5),
    "streaming_llm": lambda ratio: kvpress.StreamingLLMPress(compression_ratio=ratio, n_sink=4),
    "l2norm": lambda ratio: kvpress.KnormPress(compression_ratio=ratio),
    "keydiff": lambda ratio: kvpress.KeyDiffPress(compression_ratio=ratio),
    "tova": lambda ratio: kvpress.TOVAPress(compression_ratio=ratio),
}


def by_kvpress(lm: LanguageModel, ids: torch.Tensor, press: Any, new_tokens: int) -> None:
    """Prefill, compress and answer, prompt by prompt."""
    for prompt in ids.split(1):
        lm.model.set_attn_implementation("sdpa")
        pressed = DynamicCache()
        old_names = {"cache_position": torch.arange(prompt.shape[1])}

        def hook(module: Any, args: Any, kwargs: Any, output: Any, names: Any = old_names) -> Any:
            return press.forward_hook(module, args, {**kwargs, "past_key_values": kwargs["cache"], **names}, output)

        layers = [layer.self_attn for layer in lm.model.base_model.layers]
        for layer in layers:
            layer.rotary_emb = lm.model.base_model.rotary_emb
        hooks = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
        lm.model.base_model(input_ids=prompt, cache=pressed, use_cache=True)
        for handle in hooks:
            handle.remove()
        lm.model.set_attn_implementation(ATTENTION_NAME)
        greedy(lm, adopted(lm, pressed, prompt.shape[1]), prompt[:, -1:], new_tokens)


def adopted(lm: LanguageModel, pressed: DynamicCache, written: int) -> CompressedCache:
    """A cache of ours that holds what kvpress has kept."""
    cache = lm.new_cache()
    for ours, theirs in zip(cache.layers, pressed.layers, strict=True):
        ours.store, ours.n_slots = PlainStore(theirs.keys, theirs.values), theirs.keys.shape[2]
    cache.tokens_written = written
    return cache


def by_kvatlas(lm: LanguageModel, full: CompressedCache, ids: torch.Tensor, name: str, new_tokens: int) -> None:
    """Fork the prefilled cache, compress and answer, all prompts at once."""
    cache = full.fork()
    policy = make_policy({"name": name, **({"window": WINDOW} if name == "snapkv" else {})})
    budget = Budget(str(ids.shape[1] // RATIO), n_sinks=4 if name == "streaming_llm" else 0, n_recent=0)
    Compressor(policy, budget, ids.shape[1], lm.rotary, list(range(len(ids))))(cache)
    cache.stop_observing()
    greedy(lm, cache, ids[:, -1:], new_tokens)


def seconds(work: Any) -> float:
    """Time a call."""
    started = time.perf_counter()
    work()
    return round(time.perf_counter() - started, 2)


def main() -> None:
    """Measure each arm, and the prefill that the arms of kvatlas share."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("resources/models/smollm2-135m"))
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--new-tokens", type=int, default=16)
    args = parser.parse_args()
    torch.set_num_threads(1)
    lm = LanguageModel.load(args.model, "cpu", "fp32")
    ids = torch.randint(5, 400, (args.prompts, args.context), generator=torch.Generator().manual_seed(0))
    kept = args.context // RATIO
    ratio = 1 - (kept + 0.5) / args.context
    with torch.inference_mode():
        # Never stopped from observing, so that every policy finds its statistics; that is the dearest prefill.
        full = lm.new_cache(Observation(cumulative=True, windows=(1, WINDOW)))
        shared = seconds(lambda: lm.prefill(ids, full))
        rows = []
        for name, press in ARMS.items():
            ours = seconds(lambda name=name: by_kvatlas(lm, full, ids, name, args.new_tokens))
            theirs = seconds(lambda press=press: by_kvpress(lm, ids, press(ratio), args.new_tokens))
            rows.append({"arm": name, "kvatlas_seconds": ours, "kvpress_seconds": theirs})
    rows.append(
        {
            "arm": "all, with the shared prefill",
            "kvatlas_seconds": round(shared + sum(row["kvatlas_seconds"] for row in rows), 2),
            "kvpress_seconds": round(sum(row["kvpress_seconds"] for row in rows), 2),
        }
    )
    size = f"{args.prompts} prompts of {args.context} tokens, {kept} slots kept, {args.new_tokens} new tokens, 1 thread"
    save("kvpress_grid", rows, model=args.model.name, grid=size, shared_prefill_seconds=shared)


if __name__ == "__main__":
    main()
