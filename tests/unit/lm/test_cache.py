"""The cache against plain transformers, and its bytes against the tensors that it holds."""

from __future__ import annotations

import pytest
import torch

from kvatlas.experiments.decoding import greedy
from kvatlas.lm.cache import Observation
from kvatlas.lm.loading import LanguageModel
from tests.support.held import held_nbytes
from tests.support.tiny_models import tiny_model, tiny_tokenizer

SHAPES = [("llama", 2, 2), ("llama", 6, 2), ("qwen2", 6, 1), ("qwen2", 14, 2), ("qwen2", 8, 1)]


def random_ids(batch: int = 2, tokens: int = 33, seed: int = 0) -> torch.Tensor:
    return torch.randint(5, 400, (batch, tokens), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("architecture", "heads", "kv_heads"), SHAPES)
def test_full_cache_is_bit_identical_to_transformers_in_prefill_and_steps(architecture, heads, kv_heads):
    ids = random_ids()
    plain = tiny_model(architecture, heads=heads, kv_heads=kv_heads)
    plain.set_attn_implementation("sdpa")
    lm = LanguageModel.wrap(tiny_model(architecture, heads=heads, kv_heads=kv_heads))
    cache = lm.new_cache()
    with torch.inference_mode():
        expected = plain(ids, use_cache=True)
        ours = lm.model.get_output_embeddings()(lm.prefill(ids, cache))
        assert torch.equal(ours, expected.logits)
        for _ in range(4):
            token = expected.logits[:, -1:].argmax(-1)
            expected = plain(token, cache=expected.cache, use_cache=True)
            assert torch.equal(lm.model.get_output_embeddings()(lm.forward(token, cache)), expected.logits)


def test_greedy_tokens_equal_those_of_generate():
    ids = random_ids()
    plain = tiny_model("qwen2")
    expected = plain.generate(ids, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)[:, 33:]
    lm = LanguageModel.wrap(tiny_model("qwen2"), tiny_tokenizer())
    lm = LanguageModel(lm.model, lm.tokenizer, lm.rotary, stop_ids=())
    cache = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(ids[:, :-1], cache)
        own = greedy(lm, cache, ids[:, -1:], 12)
    assert own.ids.tolist() == expected.tolist()


@pytest.mark.parametrize("block", [1, 5, 32])
def test_block_size_changes_logits_by_rounding_only(block):
    lm = LanguageModel.wrap(tiny_model("llama"))
    ids = random_ids()
    with torch.inference_mode():
        whole = lm.prefill(ids, lm.new_cache())[:, -1]
        parts = lm.prefill(ids, lm.new_cache(), block)[:, -1]
    torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)


def test_nbytes_counts_every_tensor_that_is_held():
    lm = LanguageModel.wrap(tiny_model("qwen2", layers=2, heads=4, kv_heads=2, head_dim=16))
    cache = lm.new_cache(Observation(cumulative=True, windows=(4,)))
    with torch.inference_mode():
        lm.prefill(random_ids(2, 20), cache)
    assert cache.payload_nbytes == 2 * 2 * 2 * 2 * 20 * 16 * 4
    for layer in cache.layers:
        # New statistics share one tensor of zeros until they are written; give each its own, as after any pass.
        layer.slot_statistics = {name: statistic.clone() for name, statistic in layer.slot_statistics.items()}
    assert cache.nbytes == held_nbytes(cache) == cache.payload_nbytes + 2 * 3 * 2 * 2 * 20 * 4


def test_selected_slots_keep_their_positions_statistics_and_peak():
    lm = LanguageModel.wrap(tiny_model("qwen2"))
    cache = lm.new_cache(Observation(cumulative=True))
    with torch.inference_mode():
        lm.prefill(random_ids(2, 12), cache)
        before = cache.nbytes
        index = torch.tensor([0, 3, 11]).expand(2, 2, 3)
        statistics = {name: statistic.clone() for name, statistic in cache.layers[0].slot_statistics.items()}
        for layer in cache.layers:
            layer.select(index)
        assert cache.layers[0].positions()[0, 0].tolist() == [0, 3, 11]
        for name, statistic in statistics.items():
            assert torch.equal(cache.layers[0].slot_statistics[name], statistic.gather(2, index))
        assert cache.nbytes < before == cache.peak_nbytes
        lm.forward(random_ids(2, 2), cache)
    assert cache.layers[0].positions()[0, 0].tolist() == [0, 3, 11, 12, 13]
    assert cache.tokens_written == 14


def test_a_fork_is_written_without_changing_the_original():
    lm = LanguageModel.wrap(tiny_model("qwen2"))
    cache = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(random_ids(2, 12), cache)
        keys = cache.layers[0].store.read()[0].clone()
        lm.forward(random_ids(2, 3), cache.fork())
    assert cache.layers[0].n_slots == cache.tokens_written == 12
    assert torch.equal(cache.layers[0].store.read()[0], keys)
