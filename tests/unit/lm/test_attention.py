"""The attention function and its statistics against brute force."""

from __future__ import annotations

import pytest
import torch

from kvatlas.lm.attention import PACKED_FROM, attend, attention_mass, causal_mask
from kvatlas.lm.cache import ATTENTION, N_QUERIES, Observation, vote_name
from kvatlas.lm.loading import LanguageModel
from tests.support.tiny_models import tiny_model

GROUPS = [(2, 2), (6, 2), (6, 1), (14, 2), (8, 1)]


def random_qkv(heads: int, kv_heads: int, queries: int, slots: int, width: int = 8, batch: int = 2):
    generator = torch.Generator().manual_seed(heads * 1000 + slots)
    query = torch.randn(batch, heads, queries, width, generator=generator)
    key, value = (torch.randn(batch, kv_heads, slots, width, generator=generator) for _ in range(2))
    return query, key, value


def brute_probabilities(query, key, scaling, bias=None):
    """Softmax attention `[B, H, Q, S]`, written out with repeated heads."""
    group = query.shape[1] // key.shape[1]
    logits = query @ key.repeat_interleave(group, dim=1).transpose(2, 3) * scaling
    if bias is not None:
        logits = logits + bias.repeat_interleave(group, dim=1)[:, :, None]
    return logits.masked_fill(~causal_mask(query.shape[2], key.shape[2], query.device), -torch.inf).softmax(-1)


@pytest.mark.parametrize(("heads", "kv_heads"), GROUPS)
@pytest.mark.parametrize(("queries", "slots"), [(1, 9), (4, 9), (9, 9), (1, 1)])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_is_lower_right_causal_for_any_number_of_queries(heads, kv_heads, queries, slots, biased):
    query, key, value = random_qkv(heads, kv_heads, queries, slots)
    bias = torch.rand(key.shape[:3], generator=torch.Generator().manual_seed(slots)) * 3 if biased else None
    expected = brute_probabilities(query, key, 0.3, bias) @ value.repeat_interleave(heads // kv_heads, dim=1)
    torch.testing.assert_close(attend(query, key, value, 0.3, bias), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("heads", "kv_heads"), GROUPS)
@pytest.mark.parametrize("last", [0, 1, 5])
def test_attention_mass_in_chunks_equals_the_whole_matrix(heads, kv_heads, last):
    query, key, _ = random_qkv(heads, kv_heads, 300, 310)
    probabilities = brute_probabilities(query, key, 0.5)[:, :, -last if last else 0 :]
    expected = probabilities.sum(2).unflatten(1, (kv_heads, -1)).mean(2)
    torch.testing.assert_close(attention_mass(query, key, 0.5, last=last), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_cumulative_attention_equals_eager_attention_of_transformers(architecture):
    model = tiny_model(architecture, heads=6, kv_heads=2)
    ids = torch.randint(5, 400, (2, 40), generator=torch.Generator().manual_seed(1))
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        eager = model(ids, output_attentions=True).attentions
    lm = LanguageModel.wrap(model)
    cache = lm.new_cache(Observation(cumulative=True, windows=(7,)))
    with torch.inference_mode():
        lm.prefill(ids, cache)
    for layer, weights in zip(cache.layers, eager, strict=True):
        grouped = weights.unflatten(1, (2, 3)).mean(2)
        torch.testing.assert_close(layer.slot_statistics[ATTENTION], grouped.sum(2), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(layer.slot_statistics[vote_name(7)], grouped[:, :, -7:].sum(2), atol=1e-4, rtol=1e-4)
        assert layer.slot_statistics[N_QUERIES][0, 0].tolist() == list(range(40, 0, -1))


@pytest.mark.parametrize("block", [1, 7, 40])
def test_statistics_do_not_depend_on_the_block_size(block):
    lm = LanguageModel.wrap(tiny_model("qwen2"))
    ids = torch.randint(5, 400, (2, 40), generator=torch.Generator().manual_seed(2))
    caches = [lm.new_cache(Observation(cumulative=True)) for _ in range(2)]
    with torch.inference_mode():
        lm.prefill(ids, caches[0])
        lm.prefill(ids, caches[1], block)
    for whole, parts in zip(caches[0].layers, caches[1].layers, strict=True):
        for name in (ATTENTION, N_QUERIES):
            torch.testing.assert_close(whole.slot_statistics[name], parts.slot_statistics[name], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scaling", [None, 0.3])
@pytest.mark.parametrize("n_slots", [PACKED_FROM - 1, PACKED_FROM, PACKED_FROM + 5])
def test_a_decode_step_over_many_slots_is_attention_written_out(n_slots, scaling):
    """Above and below the length from which queries of a group are attended together."""
    generator = torch.Generator().manual_seed(n_slots)
    query = torch.randn(2, 6, 1, 16, generator=generator)
    key, value = torch.randn(2, 2, 2, n_slots + 40, 16, generator=generator)[..., :n_slots, :]
    logits = (query.unflatten(1, (2, 3)) @ key[:, :, None].mT) * (scaling or 0.25)
    expected = (logits.softmax(dim=-1) @ value[:, :, None]).flatten(1, 2)
    output = attend(query, key, value, scaling, None)
    assert output.shape == query.shape
    torch.testing.assert_close(output, expected, atol=1e-6, rtol=1e-5)
