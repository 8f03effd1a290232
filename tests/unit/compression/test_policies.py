"""What every policy owes, and what each one keeps."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
from kvatlas.compression.clustering import assign, weighted_means
from kvatlas.compression.methods import policies
from kvatlas.compression.policies.base import Policy
from kvatlas.compression.selection import top_slots
from kvatlas.errors import KvatlasError
from kvatlas.lm.attention import attend
from kvatlas.lm.cache import CLUSTER_SIZE, CompressedCache, vote_name
from kvatlas.lm.loading import LanguageModel
from tests.support.policies import CLUSTERING_SPECS, EVICTION_SPECS, SPECS, label
from tests.support.tiny_models import tiny_model

T = 60
BUDGET = Budget("4x", n_sinks=2, n_recent=8)
KEPT = 10 + 50 // 4


def prompt_ids(tokens: int = T, batch: int = 2) -> torch.Tensor:
    return torch.randint(5, 400, (batch, tokens), generator=torch.Generator().manual_seed(tokens))


def compressed(
    spec: dict[str, Any], lm: LanguageModel, budget: Budget = BUDGET, tokens: int = T, block: int = 0
) -> CompressedCache:
    policy = make_policy(spec)
    cache = lm.new_cache(policy.observation())
    ids = prompt_ids(tokens)
    rarity = ids % 3
    compressor = Compressor(policy, budget, tokens, lm.rotary, [11, 12], rarity)
    with torch.inference_mode():
        lm.prefill(ids, cache, block, (lambda: compressor(cache)) if block else None)
        compressor(cache)
    return cache


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    return LanguageModel.wrap(tiny_model("qwen2", layers=3, heads=6, kv_heads=2))


def splits_evenly(spec: dict[str, Any]) -> bool:
    """Whether all layers keep equally many slots."""
    return type(make_policy(spec)).layer_budgets is Policy.layer_budgets


def test_every_registered_policy_is_tested():
    assert {spec["name"] for spec in SPECS} == set(policies())


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_the_budget_is_met_exactly_and_protected_slots_stay(spec, lm):
    cache = compressed(spec, lm)
    policy = make_policy(spec)
    # Layers share a budget evenly, except under policies that split it by themselves.
    assert sum(layer.n_slots for layer in cache.layers) == 3 * KEPT
    for layer in cache.layers:
        positions = layer.positions()
        assert positions.shape[2] == layer.n_slots
        assert layer.n_slots == KEPT or not splits_evenly(spec)
        assert (positions.diff(dim=2) >= 0).all()
        assert (positions[..., :2] == torch.arange(2)).all() or not policy.protects_sinks
        assert (positions[..., -8:] == torch.arange(T - 8, T)).all() or not policy.protects_recent


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_streaming_in_blocks_stays_within_budget_plus_one_block(spec, lm):
    cache = compressed(spec, lm, Budget("24", n_sinks=2, n_recent=8), block=8)
    slot = 2 * 2 * 16 * 4 * 3 * 2  # keys and values, heads, width, bytes, layers, prompts
    assert sum(layer.n_slots for layer in cache.layers) <= 3 * 24
    assert cache.layers[0].n_slots == 24 or not splits_evenly(spec)
    n_statistics = len(cache.layers[0].slot_statistics)
    queries = sum(tensor.nbytes for layer in cache.layers for tensor in layer.query_statistics.values())
    assert cache.peak_nbytes <= (24 + 8) * (slot + n_statistics * 2 * 4 * 3 * 2) + queries
    assert cache.tokens_written == T


@pytest.mark.parametrize("spec", SPECS, ids=label)
def test_a_budget_over_the_prompt_leaves_the_cache_untouched(spec, lm):
    cache = compressed(spec, lm, Budget(str(T), n_sinks=2, n_recent=8))
    assert cache.layers[0].n_slots == T
    assert not cache.reindexed


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("spec", EVICTION_SPECS, ids=label)
def test_evicted_cache_gives_the_logits_of_its_masked_twin(spec, architecture):
    lm = LanguageModel.wrap(tiny_model(architecture, layers=3, heads=6, kv_heads=2))
    cache = compressed(spec, lm)
    twin = lm.new_cache()
    follow = prompt_ids(5)
    with torch.inference_mode():
        lm.prefill(prompt_ids(), twin)
        ours = lm.forward(follow, cache.fork())
    stays = []
    for layer in cache.layers:
        mask = torch.zeros(2, 2, T, dtype=torch.bool)
        mask.scatter_(2, layer.positions().long(), True)
        stays.append(mask)

    class Mask:
        """A tap that hides evicted slots of the full cache by a bias of minus infinity."""

        def bias(self, layer_idx: int) -> torch.Tensor:
            kept = stays[layer_idx]
            visible = torch.cat([kept, torch.ones(2, 2, 5, dtype=torch.bool)], dim=2)
            return torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)

        def observe(self, *_: object) -> None: ...

    with torch.inference_mode():
        masked = lm.forward(follow, twin, Mask())
    torch.testing.assert_close(ours, masked, atol=1e-5, rtol=1e-5)


def test_skipped_layers_stay_full(lm):
    cache = compressed({"name": "h2o"}, lm, Budget("50%", 2, 8, skip_layers=(0, 1)))
    assert [layer.n_slots for layer in cache.layers] == [T, T, T // 2]


def test_naive_drop_keeps_evenly_spaced_slots(lm):
    kept = compressed({"name": "naive_drop"}, lm).layers[0].positions()[0, 0].tolist()
    assert kept[2:-8] == [2 + int((i + 0.5) * 50 / 12) for i in range(12)]


def test_random_differs_between_prompts_layers_and_heads_but_not_between_runs(lm):
    first, again = (compressed({"name": "random"}, lm) for _ in range(2))
    sets = set()
    for a, b in zip(first.layers, again.layers, strict=True):
        assert torch.equal(a.positions(), b.positions())
        sets |= {tuple(head.tolist()) for prompt in a.positions() for head in prompt}
    assert len(sets) == 3 * 2 * 2


def test_random_keeps_every_middle_slot_equally_often():
    lm = LanguageModel.wrap(tiny_model("qwen2", layers=1, heads=2, kv_heads=2))
    counts = np.zeros(T)
    for seed in range(200):
        for position in (
            compressed({"name": "random", "seed": seed}, lm).layers[0].positions().flatten().long().tolist()
        ):
            counts[position] += 1
    middle = counts[2:-8]
    expected = 200 * 4 * 12 / 50
    assert abs(middle - expected).max() < 5 * expected**0.5


def test_streaming_llm_keeps_the_contiguous_tail(lm):
    kept = compressed({"name": "streaming_llm"}, lm).layers[0].positions()[0, 0].tolist()
    assert kept == [0, 1, *range(T - 20, T)]


def test_reindexed_streaming_equals_a_prompt_that_never_had_the_dropped_tokens():
    lm = LanguageModel.wrap(tiny_model("llama", layers=1))
    cache = compressed({"name": "streaming_llm", "reindex": True}, lm)
    ids = prompt_ids()
    short = torch.cat([ids[:, :2], ids[:, -20:]], dim=1)
    fresh = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(short, fresh)
        follow = prompt_ids(5)
        # In one layer, keys and values depend on their own token alone.
        torch.testing.assert_close(lm.forward(follow, cache), lm.forward(follow, fresh), atol=1e-4, rtol=1e-4)
    assert cache.next_position() == 27


def test_h2o_without_normalisation_favours_early_tokens_more(lm):
    raw, fair = (
        compressed({"name": "h2o", "normalise": how}, lm).layers[0].positions()[..., 2:-8].mean()
        for how in ("none", "queries")
    )
    assert raw < fair


def test_snapkv_keeps_the_slots_that_the_window_looks_at(lm):
    spec = {"name": "snapkv", "window": 4, "kernel": 1}
    policy = make_policy(spec)
    cache = lm.new_cache(policy.observation())
    with torch.inference_mode():
        lm.prefill(prompt_ids(), cache)
        layer = cache.layers[1]
        votes = layer.slot_statistics[vote_name(4)][0, 1, 2:-8]
        best = set((votes.topk(12).indices + 2).tolist())
        Compressor(policy, BUDGET, T, lm.rotary, [1, 2])(cache)
    assert set(layer.positions()[0, 1, 2:-8].long().tolist()) == best


def test_snapkv_slots_inside_the_window_always_stay(lm):
    cache = compressed({"name": "snapkv", "window": 12, "kernel": 3}, lm, Budget("4x", n_sinks=2, n_recent=8))
    assert (cache.layers[0].positions()[..., -12:] == torch.arange(T - 12, T)).all()


@pytest.mark.parametrize("pre_rope", [False, True])
def test_emeans_with_as_many_clusters_as_slots_returns_the_input(pre_rope, lm):
    name = "emeans_pre_rope" if pre_rope else "emeans_post_rope"
    policy = make_policy({"name": name, "window": 4})
    cache = lm.new_cache(policy.observation())
    with torch.inference_mode():
        lm.prefill(prompt_ids(), cache)
        layer = cache.layers[1]
        keys, values = (tensor.clone() for tensor in layer.store.read())
        budget = policy.slots(Budget(str(T), 2, 8).resolve(T))
        policy.compress(layer, budget, context_of(lm))
    torch.testing.assert_close(layer.store.read()[0], keys, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(layer.store.read()[1], values, atol=1e-4, rtol=1e-4)
    assert (layer.slot_statistics[CLUSTER_SIZE] == 1).all()


def context_of(lm: LanguageModel):
    from kvatlas.compression.policies.base import PromptContext

    return PromptContext(lm.rotary, [1, 2])


@pytest.mark.parametrize("spec", CLUSTERING_SPECS, ids=label)
def test_centroids_stand_for_every_token_and_average_their_members(spec, lm):
    cache = compressed(spec, lm)
    for layer in cache.layers:
        assert (layer.slot_statistics[CLUSTER_SIZE].sum(dim=2) == T).all()
        assert (layer.slot_statistics[CLUSTER_SIZE] >= 1).all()
    if spec.get("weights") == "uniform":
        full = lm.new_cache()
        with torch.inference_mode():
            lm.prefill(prompt_ids(), full)
        for layer, whole in zip(cache.layers, full.layers, strict=True):
            size = layer.slot_statistics[CLUSTER_SIZE][..., None]
            torch.testing.assert_close(
                (layer.store.read()[1] * size).sum(2), whole.store.read()[1].sum(2), atol=1e-3, rtol=1e-3
            )


def test_mass_bias_makes_a_centroid_of_equal_keys_weigh_as_its_members():
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 1, 8, generator=generator)
    key, value = (torch.randn(1, 1, 3, 8, generator=generator) for _ in range(2))
    repeats = torch.tensor([1, 4, 2])
    expected = attend(query, key.repeat_interleave(repeats, 2), value.repeat_interleave(repeats, 2), 0.4, None)
    bias = repeats.float().log()[None, None]
    torch.testing.assert_close(attend(query, key, value, 0.4, bias), expected, atol=1e-6, rtol=1e-5)


def test_lloyd_steps_never_leave_a_cluster_empty_and_lower_the_weighted_error():
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(4, 80, 6, generator=generator)
    keys[:, 20:50] = keys[:, 20:21]  # many equal slots: clusters collapse
    weights = torch.rand(4, 80, generator=generator) + 0.1
    errors = []
    for n_iter in (0, 1, 5, 20):
        cluster = assign(keys, weights, 16, n_iter)
        assert all(len(row.unique()) == 16 for row in cluster)
        centroids = weighted_means(keys, weights, cluster, 16)
        nearest = centroids.gather(1, cluster[..., None].expand(-1, -1, 6))
        errors.append(float((weights * (keys - nearest).square().sum(-1)).sum()))
    assert errors[3] <= errors[2] <= errors[1] <= errors[0]


def test_ties_are_broken_by_position_also_in_bf16():
    scores = torch.tensor([[[1.0, 2.0, 2.0, 2.0, 1.0, 2.0]]]).to(torch.bfloat16)
    assert top_slots(scores, 3).tolist() == [[[2, 3, 5]]]
    assert top_slots(torch.zeros(1, 1, 6), 2).tolist() == [[[4, 5]]]


def test_scores_with_nan_are_refused():
    with pytest.raises(KvatlasError, match="NaN"):
        top_slots(torch.tensor([[[1.0, float("nan")]]]), 1)


def test_votes_fade_when_fewer_queries_than_the_window_come_at_once(lm):
    policy = make_policy({"name": "snapkv", "window": 4, "kernel": 1})
    cache = lm.new_cache(policy.observation())
    with torch.inference_mode():
        lm.prefill(prompt_ids(), cache)
        before = cache.layers[0].slot_statistics[vote_name(4)].clone()
        lm.forward(prompt_ids(1), cache)
    after = cache.layers[0].slot_statistics[vote_name(4)]
    # Four queries spend 4 in all per head; after one more, three quarters of that and 1 of its own.
    torch.testing.assert_close(before.sum(2), torch.full((2, 2), 4.0))
    torch.testing.assert_close(after.sum(2), torch.full((2, 2), 4.0))


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (Budget("0.5x", 2, 8), "ratio of at least 1"),
        (Budget("fourx", 2, 8), "ratio of at least 1"),
        (Budget("0%", 2, 8), "share above 0"),
        (Budget("2.5", 2, 8), "whole number of slots"),
        (Budget("4x", 30, 30), r"n_sinks \+ n_recent"),
        (Budget("60x", 2, 8), "keeps 10 slots"),
        (Budget("10", 2, 8), "raise the budget"),
    ],
)
def test_impossible_budgets_are_told_in_one_line(budget, message):
    with pytest.raises(KvatlasError, match=message) as caught:
        budget.resolve(T)
    assert "\n" not in str(caught.value)


def test_budgets_mean_what_they_say():
    assert Budget("4x", 4, 84).resolve(1024).n_mid == (1024 - 88) // 4
    assert Budget("50%", 4, 32).resolve(309).total == 155
    assert Budget("10%", 4, 32).resolve(16384).total == 1639
    assert Budget("256", 4, 32).resolve(2048).total == 256


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "snapkw"}, "'snapkw' is unknown; use one of"),
        ({"name": "snapkv", "windows": 3}, "windows"),
        ({"name": "snapkv", "kernel": 4}, "odd number"),
        ({"name": "snapkv", "window": 0}, "at least 1"),
    ],
)
def test_unknown_policies_and_parameters_are_told_in_one_line(spec, message):
    with pytest.raises(KvatlasError, match=message):
        make_policy(spec)


def test_a_window_as_long_as_the_prompt_is_told(lm):
    with pytest.raises(KvatlasError, match="use a smaller window"):
        compressed({"name": "snapkv", "window": T}, lm)


def test_reindexing_refuses_skipped_layers(lm):
    with pytest.raises(KvatlasError, match="skip_layers"):
        compressed({"name": "streaming_llm", "reindex": True}, lm, Budget("4x", 2, 8, skip_layers=(0,)))


def test_statistics_need_memory_linear_in_the_prompt():
    """The largest tensor that the statistics allocate grows like T, not like T x T."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from kvatlas.lm.attention import attention_mass

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                Largest.numel = max(Largest.numel, out.numel())
            return out

    sizes = []
    for tokens in (1024, 2048, 4096):
        draw = torch.Generator().manual_seed(tokens)
        query, key = (torch.randn(1, heads, tokens, 4, generator=draw) for heads in (4, 2))
        Largest.numel = 0
        with Largest():
            attention_mass(query, key, 0.5)
        sizes.append(Largest.numel)
    assert sizes[1] <= 2.1 * sizes[0]
    assert sizes[2] <= 2.1 * sizes[1]


@pytest.mark.parametrize(("name", "sign"), [("l2norm", -1), ("high_l2", 1)])
def test_l2_selection_keeps_the_smallest_or_largest_norms(name, sign, lm):
    full = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(prompt_ids(), full)
    for layer, whole in zip(compressed({"name": name}, lm).layers, full.layers, strict=True):
        scores = sign * whole.store.read()[0].norm(dim=-1)
        kept = scores.gather(2, layer.positions()[..., 2:-8].long())
        # By value: a token that occurs twice has the same norm twice.
        best = scores[..., 2 : T - 8].topk(KEPT - 10, dim=-1).values
        torch.testing.assert_close(kept.sort(dim=-1, descending=True).values, best)


def test_keydiff_drops_the_keys_that_point_along_the_average(lm):
    layer = CompressedCache(1).layers[0]
    keys = torch.ones(1, 1, 12, 4) + 0.01 * torch.randn(1, 1, 12, 4, generator=torch.Generator().manual_seed(0))
    keys[0, 0, [3, 8]] = torch.tensor([[5.0, -5.0, 0.0, 0.0], [0.0, 0.0, -0.1, 0.1]])
    layer.update(keys, keys)
    scores = make_policy({"name": "keydiff"}).scores(layer, context_of(lm))
    # A key's length does not matter, its direction does.
    assert set(scores[0, 0].topk(2).indices.tolist()) == {3, 8}


def test_tova_keeps_one_set_of_tokens_per_layer_and_reads_all_query_heads(lm):
    cache = compressed({"name": "tova"}, lm, Budget("20", n_sinks=0, n_recent=0))
    for layer in cache.layers:
        positions = layer.positions()
        assert torch.equal(positions[:, :1].expand_as(positions), positions)
        assert (positions[..., -1] == T - 1).all()
    different = [not torch.equal(a.positions(), b.positions()) for a, b in pairwise(cache.layers)]
    assert all(different)


@pytest.mark.parametrize("name", ["l2norm", "high_l2", "keydiff"])
def test_key_norms_that_tie_in_bf16_are_decided_by_position_the_same_every_time(name, lm):
    """In bf16 hundreds of norms are equal at the cut, where `topk` picks as it likes."""
    layer = CompressedCache(1).layers[0]
    generator = torch.Generator().manual_seed(2)
    rows = torch.randn(3, 8, generator=generator).to(torch.bfloat16)
    keys = rows[torch.randint(0, 3, (400,), generator=generator)].expand(1, 2, 400, 8).clone()
    layer.update(keys, keys)
    scores = make_policy({"name": name}).scores(layer, context_of(lm))
    assert scores.dtype == torch.float32
    assert all(len(head.unique()) <= 3 for head in scores[0])
    kept = top_slots(scores, 150)
    lowest = scores.gather(2, kept).amin(dim=2, keepdim=True)
    tied = (scores == lowest).nonzero()
    for head in range(2):
        slots = tied[(tied[:, 1] == head)][:, 2].tolist()
        taken = sorted(set(slots) & set(kept[0, head].tolist()))
        assert len(slots) > len(taken) > 0
        assert taken == slots[-len(taken) :]
    assert torch.equal(kept, top_slots(scores.clone(), 150))
