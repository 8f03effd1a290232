"""The running statistics of queries before RoPE, against the model's own projections."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kvatlas.errors import KvatlasError
from kvatlas.grid.memory import query_bytes
from kvatlas.lm.cache import Observation
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.query_statistics import COUNT, MEAN, N_SKIPPED, QUERY_STATISTICS, SCATTER
from kvatlas.lm.rope import Rotary
from tests.support.tiny_models import tiny_model

IDS = torch.randint(5, 400, (2, 40), generator=torch.Generator().manual_seed(1))


def observed(lm: LanguageModel, block: int) -> dict[str, torch.Tensor]:
    cache = lm.new_cache(Observation(queries=True))
    with torch.inference_mode():
        lm.prefill(IDS, cache, block)
    return cache.layers[1].query_statistics


@pytest.mark.parametrize("block", [0, 1, 3, 16])
def test_queries_are_those_of_the_projection_in_any_blocks(block):
    lm = LanguageModel.wrap(tiny_model("qwen2", heads=6, kv_heads=2))
    projected = []
    projection = lm.model.base_model.layers[1].self_attn.q_proj
    handle = projection.register_forward_hook(lambda _module, _args, output: projected.append(output))
    statistics = observed(lm, block)
    handle.remove()
    queries = torch.cat(projected, dim=1).reshape(2, 40, 6, 16).transpose(1, 2)[:, :, N_SKIPPED:].double() / 4
    centred = queries - queries.mean(dim=2, keepdim=True)
    assert statistics[COUNT].tolist() == [36, 36]
    torch.testing.assert_close(statistics[MEAN].double(), queries.mean(dim=2), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(statistics[SCATTER].double(), centred.mT @ centred, atol=1e-4, rtol=1e-4)


def test_a_model_whose_rotation_cannot_be_undone_is_refused_with_its_reason():
    lm = LanguageModel.wrap(tiny_model("llama"))
    lm = replace(lm, rotary=replace(lm.rotary, refusal="model: layer 0 rotates its keys in another way"))
    with pytest.raises(KvatlasError, match="layer 0 rotates"):
        observed(lm, 0)


def test_statistics_are_counted_forked_and_dropped_when_observing_stops():
    lm = LanguageModel.wrap(tiny_model("qwen2", layers=1, heads=4, kv_heads=2))
    cache = lm.new_cache(Observation(queries=True))
    with torch.inference_mode():
        lm.prefill(IDS, cache)
        held = {name: tensor.clone() for name, tensor in cache.layers[0].query_statistics.items()}
        assert cache.nbytes - cache.payload_nbytes == 2 * 4 * (1 + 4 * 16 + 4 * 16 * 16)
        assert cache.nbytes - cache.payload_nbytes == 2 * query_bytes({"layers": 1, "heads": 4, "head_dim": 16})
        lm.forward(IDS[:, :3], cache.fork())
    assert all(torch.equal(cache.layers[0].query_statistics[name], held[name]) for name in QUERY_STATISTICS)
    cache.stop_observing()
    assert cache.nbytes == cache.payload_nbytes


def test_the_mean_rotation_is_the_mean_of_single_ones():
    rotary = Rotary(torch.tensor([1.0, 0.3, 0.05]))
    vectors = torch.randn(1, 1, 5, 8, generator=torch.Generator().manual_seed(2))  # two channels are not rotated
    turned = torch.stack([rotary.move(vectors, 0.0, float(position)) for position in range(10, 17)]).mean(dim=0)
    torch.testing.assert_close(vectors @ rotary.mean_rotation(10, 7, 8, vectors.device).T, turned)
