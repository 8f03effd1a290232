"""Kept sets against kvpress, an independent implementation: fp32, random weights, half of the slots kept."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
from kvatlas.lm.loading import LanguageModel
from tests.support.tiny_models import tiny_model

kvpress = pytest.importorskip("kvpress")

WINDOW = 16
EXPECTED = "expected_attention"
SHAPES = [("llama", 1, 1), ("qwen2", 6, 1), ("qwen2", 14, 2), ("llama", 16, 2)]
# Shorter prompts tie everywhere: kvpress gives the window the highest score of the others, and pooling levels the rest.
LENGTHS = [2 * WINDOW + 1, 100, 257]


def kept_by_kvpress(model, ids: torch.Tensor, press) -> list[torch.Tensor]:
    """Positions kept per layer `[K, n]`, ascending: rows of the pressed cache matched bitwise against the full one."""
    full, pressed = DynamicCache(), DynamicCache()
    model.set_attn_implementation("sdpa")

    def hook(module, args, kwargs, output):
        # transformers renamed the cache argument; kvpress reads it, and the positions, under their old names.
        old_names = {"past_key_values": kwargs["cache"], "cache_position": torch.arange(ids.shape[1])}
        return press.forward_hook(module, args, {**kwargs, **old_names}, output)

    with torch.inference_mode():
        model.base_model(input_ids=ids, cache=full)
        for layer in model.base_model.layers:
            layer.self_attn.rotary_emb = model.base_model.rotary_emb
        hooks = [m.self_attn.register_forward_hook(hook, with_kwargs=True) for m in model.base_model.layers]
        model.base_model(input_ids=ids, cache=pressed, use_cache=True)
        for handle in hooks:
            handle.remove()
    kept = []
    for before, after in zip(full.layers, pressed.layers, strict=True):
        same = (after.keys[0][:, :, None] == before.keys[0][:, None]).all(-1)
        assert (same.sum(-1) == 1).all()
        kept.append(same.int().argmax(-1).sort(-1).values)
    return kept


def kept_by_us(lm: LanguageModel, ids: torch.Tensor, spec: dict, budget: Budget) -> list[torch.Tensor]:
    policy = make_policy(spec)
    cache = lm.new_cache(policy.observation())
    with torch.inference_mode():
        lm.prefill(ids, cache)
        Compressor(policy, budget, ids.shape[1], lm.rotary, [0])(cache)
    return [layer.positions()[0].long() for layer in cache.layers]


@pytest.mark.parametrize(("architecture", "heads", "kv_heads"), SHAPES)
@pytest.mark.parametrize("tokens", LENGTHS)
@pytest.mark.parametrize("method", ["snapkv", "streaming_llm", "random", "l2norm", "keydiff", "tova", EXPECTED])
def test_the_same_slots_are_kept_as_by_kvpress(method, architecture, heads, kv_heads, tokens):
    n_kept = max(int(tokens * 0.5), WINDOW + 1)
    ratio = 1 - (n_kept + 0.5) / tokens  # kvpress keeps int(T (1 - ratio))
    ids = torch.randint(5, 400, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    model = tiny_model(architecture, layers=2, heads=heads, kv_heads=kv_heads)
    press = {
        "snapkv": lambda: kvpress.SnapKVPress(compression_ratio=ratio, window_size=WINDOW, kernel_size=5),
        "streaming_llm": lambda: kvpress.StreamingLLMPress(compression_ratio=ratio, n_sink=4),
        "random": lambda: kvpress.RandomPress(compression_ratio=ratio, seed=1),
        "l2norm": lambda: kvpress.KnormPress(compression_ratio=ratio),
        "keydiff": lambda: kvpress.KeyDiffPress(compression_ratio=ratio),
        "tova": lambda: kvpress.TOVAPress(compression_ratio=ratio),
        EXPECTED: lambda: kvpress.ExpectedAttentionPress(compression_ratio=ratio),
    }[method]()
    theirs = kept_by_kvpress(model, ids, press)
    spec = {"snapkv": {"name": "snapkv", "window": WINDOW, "kernel": 5}}.get(method, {"name": method})
    n_sinks = 4 if method == "streaming_llm" else 0
    ours = kept_by_us(LanguageModel.wrap(model), ids, spec, Budget(str(n_kept), n_sinks=n_sinks, n_recent=0))
    assert [positions.shape for positions in ours] == [positions.shape for positions in theirs]
    if method == "random":
        # The contract alone: as many distinct slots in every head. kvpress draws the same ones in all layers.
        assert all(len(head.unique()) == n_kept for layer in ours for head in layer)
        return
    for our, their in zip(ours, theirs, strict=True):
        assert torch.equal(our, their)


@pytest.mark.parametrize(("architecture", "heads", "kv_heads"), SHAPES[:3])
@pytest.mark.parametrize("tokens", [100, 257])
def test_pyramidkv_keeps_the_same_slots_as_kvpress_of_the_same_budgets(architecture, heads, kv_heads, tokens):
    """kvpress counts the window as part of a layer's line and rounds each layer by itself; lines and scores agree."""
    n_layers, n_kept = 4, tokens // 2
    model = tiny_model(architecture, layers=n_layers, heads=heads, kv_heads=kv_heads)
    ids = torch.randint(5, 400, (1, tokens), generator=torch.Generator().manual_seed(tokens))
    spec = {"name": "pyramidkv", "window": WINDOW, "kernel": 5, "beta": 2.0}
    ours = kept_by_us(LanguageModel.wrap(model), ids, spec, Budget(str(n_kept), n_sinks=0, n_recent=0))
    slots = [positions.shape[1] for positions in ours]
    press = kvpress.PyramidKVPress(1 - (n_kept - WINDOW) / tokens, window_size=WINDOW, kernel_size=5, beta=2)
    attention = [layer.self_attn for layer in model.base_model.layers]
    lines = [press.get_layer_budget(module, tokens) for module in attention]
    assert len(set(lines)) == n_layers  # it did not fall back
    assert sum(slots) == n_layers * n_kept
    assert all(abs(our - WINDOW - line) <= 1 for our, line in zip(slots, lines, strict=True))
    press.get_layer_budget = lambda module, _: slots[module.layer_idx]
    for our, their in zip(ours, kept_by_kvpress(model, ids, press), strict=True):
        assert torch.equal(our, their)
