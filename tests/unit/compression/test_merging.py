"""Value merging, against sums written out slot by slot."""

from __future__ import annotations

import pytest
import torch

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
from kvatlas.errors import KvatlasError
from kvatlas.grid import policy_parameters
from kvatlas.lm.cache import CLUSTER_SIZE, CompressedCache
from kvatlas.lm.loading import LanguageModel
from kvatlas.tracking.dependencies import cell_step
from tests.support.tiny_models import tiny_model

IDS = torch.randint(5, 400, (2, 50), generator=torch.Generator().manual_seed(4))
BASES = [{"policy": "snapkv", "window": 4}, {"policy": "keydiff"}, {"policy": "expected_attention"}]


def compressed(spec: dict) -> CompressedCache:
    lm, policy = LanguageModel.wrap(tiny_model("qwen2", heads=6, kv_heads=2)), make_policy(spec)
    cache = lm.new_cache(policy.observation() if policy else None)
    with torch.inference_mode():
        lm.prefill(IDS, cache)
        Compressor(policy, Budget("20", 2, 4) if policy else None, 50, lm.rotary, [0, 1])(cache)
    return cache


@pytest.mark.parametrize("base", BASES, ids=lambda base: base["policy"])
def test_evicted_values_join_the_kept_slot_with_the_most_similar_key(base):
    merged = compressed({"name": "merging", "base": base}).layers[1]
    evicting = {"name": base["policy"], **{key: value for key, value in base.items() if key != "policy"}}
    evicted, full = compressed(evicting).layers[1], compressed({"name": "full"}).layers[1]
    assert torch.equal(merged.positions(), evicted.positions())
    assert torch.equal(merged.store.read()[0], evicted.store.read()[0])
    keys, values = full.store.read()
    for prompt in range(2):
        for head in range(2):
            kept = merged.positions()[prompt, head].long().tolist()
            k, v = keys[prompt, head].double(), values[prompt, head].double()
            expected, members = {slot: v[slot].clone() for slot in kept}, dict.fromkeys(kept, 1)
            for slot in set(range(50)) - set(kept):
                cosines = torch.cosine_similarity(k[slot][None], k[kept], dim=-1)
                to, length = kept[int(cosines.argmax())], v[slot].norm()
                expected[to] += cosines.max() * length / (length + v[to].norm()) * v[slot]
                members[to] += 1
            ours = merged.store.read()[1][prompt, head].double()
            torch.testing.assert_close(ours, torch.stack(list(expected.values())), atol=1e-5, rtol=1e-5)
            assert merged.slot_statistics[CLUSTER_SIZE][prompt, head].tolist() == list(members.values())


def test_members_add_their_logarithm_to_the_logit_only_where_asked():
    plain, weighted = (
        compressed({"name": "merging", "base": BASES[1], "proportional_attention": on}) for on in (False, True)
    )
    assert plain.layers[0].bias() is None
    assert torch.equal(weighted.layers[0].bias().exp().round().sum(-1), torch.full((2, 2), 50.0))


@pytest.mark.parametrize("base", [{"policy": "emeans_post_rope"}, {"policy": "streaming_llm", "reindex": True}, {}])
def test_bases_that_do_not_only_evict_are_refused(base):
    with pytest.raises(KvatlasError, match="base: "):
        make_policy({"name": "merging", "base": base})


def test_the_base_counts_where_the_policy_does():
    policy = {"name": "merging", "base": {"policy": "snapkv", "window": 24}}
    assert policy_parameters.window_of(policy) == 24
    assert policy_parameters.window_of({"name": "merging"}) == 16
    assert policy_parameters.reads_queries({"name": "merging", "base": BASES[2]})
    assert "kvatlas.compression.policies.snapkv" in cell_step({"kind": "recall", "policy": policy}).modules
