"""Quantized stores: what they hold, how many bytes that is, and that every way of holding it reads the same bits."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from kvatlas.compression.affine import affine_decode, affine_encode, pack, unpack
from kvatlas.compression.apply import Compressor, quantize
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy, make_store
from kvatlas.compression.quantizers.kivi import GROUP, KiviStore
from kvatlas.errors import KvatlasError
from kvatlas.experiments.decoding import greedy
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.stores import PlainStore
from tests.support.held import held_nbytes
from tests.support.policies import SPECS, UNEVEN, label
from tests.support.quantizers import KIVI, QUANTIZERS, bits_per_value
from tests.support.tiny_models import tiny_model, tiny_tokenizer

PROMPT, NEW = 309, 155


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def filled(name: str, tokens: int = 96, width: int = 64, storage: str = "packed"):
    store = make_store(name, storage)()
    store.append(normal(2, 2, tokens, width), normal(2, 2, tokens, width, seed=1))
    return store


@pytest.mark.parametrize("name", QUANTIZERS)
@pytest.mark.parametrize("place", [0, 1])
def test_bits_per_value_are_those_of_the_tensors(name, place):
    tokens, width = 320, (64, 128)[place]
    store = filled(name, tokens, width)
    values = 2 * 2 * 2 * width
    held = sum(tensor.numel() * tensor.element_size() for tensor in store.tensors())
    residual = 32 if name in KIVI else 0
    assert store.unselectable_recent() == residual
    assert 8 * held == values * ((tokens - residual) * bits_per_value(name, width) + residual * 16)
    assert store.nbytes == held == filled(name, tokens, width, "simulated").nbytes


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_packing_loses_nothing_and_takes_the_bits_it_says(bits):
    codes = torch.randint(0, 2**bits, (3, 5, 64), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.dtype == torch.uint8
    assert packed.numel() * 8 == codes.numel() * bits
    assert torch.equal(unpack(packed, bits), codes)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_rounding_is_off_by_half_a_step_at_most(bits):
    values = 3 * normal(4, 50, 64) + 1
    codes, scale, zero = affine_encode(values, bits, dim=-1)
    error = (affine_decode(codes, scale, zero) - values).abs()
    # Scale and zero are rounded to fp16, which may put the extreme values a little outside of the codes' range.
    assert (error <= scale.float() * 0.5 * 1.01 + 2e-3 * values.abs().amax(-1, keepdim=True)).all()
    assert codes.unique().numel() == 2**bits


def test_a_constant_vector_is_kept():
    values = torch.full((1, 1, 3, 8), 2.5)
    assert torch.equal(affine_decode(*affine_encode(values, 4, dim=-1)), values)


@pytest.mark.parametrize("spread", [0.0, 200.0])
def test_an_outlier_channel_ruins_per_token_int4_keys_and_not_per_channel_ones(spread):
    keys = normal(1, 2, 256, 64)
    keys[..., 5] += spread
    others = [channel for channel in range(64) if channel != 5]
    errors = {}
    for name in ("int4", "kivi4"):
        store = make_store(name)()
        store.append(keys, keys)
        read = store.read()[0]
        errors[name] = float((read - keys)[..., others].abs().sum() / keys[..., others].abs().sum())
    # An int4 step is (200 + 5) / 15 = 14 standard deviations of the other channels: all of them round to one code.
    assert errors["kivi4"] < 0.12
    assert errors["int4"] > 0.9 if spread else errors["int4"] < 0.15


def test_fp8_saturates_at_448_and_counts_it():
    store = make_store("fp8")()
    keys = torch.zeros(1, 1, 2, 4)
    keys[0, 0, 0] = torch.tensor([447.0, 500.0, -1e6, 1.0])
    store.append(keys, torch.zeros_like(keys))
    assert store.read()[0][0, 0, 0].tolist() == [448.0, 448.0, -448.0, 1.0]
    assert store.saturated == 2
    store.append(keys, keys)
    assert store.saturated == 6
    assert store.fork().saturated == 6


@pytest.mark.parametrize("name", QUANTIZERS)
def test_reads_of_an_empty_store_are_told(name):
    with pytest.raises(KvatlasError, match="before anything was written"):
        make_store(name)().read()


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_slot_is_rounded_once_whatever_is_evicted_around_it(name):
    """Keys and values of a kept slot stay the same bits through evictions and later writes."""
    store = filled(name, 96)
    generator = torch.Generator().manual_seed(3)
    position = torch.arange(96).expand(2, 2, 96)
    first = dict(enumerate(store.read()[0][0, 0].tolist()))
    coded = set(range(96 - store.unselectable_recent()))
    for step in range(6):
        n_slots = position.shape[2]
        n_recent = store.unselectable_recent()
        order = torch.rand(2, 2, n_slots - n_recent, generator=generator).argsort(dim=2)[..., : n_slots - n_recent - 20]
        tail = torch.arange(n_slots - n_recent, n_slots).expand(2, 2, n_recent)
        index = torch.cat([order.sort(dim=2).values, tail], dim=2)
        store.select(index)
        position = torch.cat([position.gather(2, index), torch.full((2, 2, 20), -1)], dim=2)
        store.append(normal(2, 2, 20, 64, seed=10 + step), normal(2, 2, 20, 64, seed=20 + step))
        keys = store.read()[0]
        for slot, where in enumerate(position[0, 0].tolist()):
            if where in coded:
                assert keys[0, 0, slot].tolist() == first[where]
    assert store.nbytes == sum(tensor.nbytes for tensor in store.tensors())


def test_kivi_drops_the_scales_of_groups_without_slots():
    store = filled("kivi4", 32 * 6 + 32)
    assert store.keys.n_groups == 6
    n_coded = 32 * 6
    # Head 0 keeps slots of groups 1 and 4, head 1 of group 5 alone: both hold two groups.
    kept = torch.stack([torch.tensor([40, 50, 130, 140]), torch.tensor([160, 161, 170, 180])])
    tail = torch.arange(n_coded, n_coded + 32).expand(2, 2, 32)
    index = torch.cat([kept.expand(2, 2, 4), tail], dim=2)
    before = [tensor.gather(2, index[..., None].expand(-1, -1, -1, 64)) for tensor in store.read()]
    store.select(index)
    assert store.keys.n_groups == 2
    assert store.keys.scales.shape == (2, 2, 2, 64)
    assert store.keys.group[0].tolist() == [[0, 0, 1, 1], [0, 0, 0, 0]]
    for ours, expected in zip(store.read(), before, strict=True):
        assert torch.equal(ours, expected)


def test_kivi_keeps_32_to_63_tokens_unquantized_and_refuses_to_evict_them():
    store = KiviStore(4)
    for tokens in range(1, 200):
        store.append(normal(1, 1, 1, 64, seed=tokens), normal(1, 1, 1, 64, seed=tokens))
        residual = store.unselectable_recent()
        assert residual == (tokens if tokens < 64 else 32 + tokens % 32)
        assert residual < 2 * GROUP
    with pytest.raises(KvatlasError, match="cannot be evicted"):
        store.select(torch.arange(100)[None, None])


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_fork_is_written_without_changing_the_original(name):
    store = filled(name, 80)
    before = [tensor.clone() for tensor in store.read()]
    twin = store.fork()
    twin.append(normal(2, 2, 40, 64, seed=5), normal(2, 2, 40, 64, seed=6))
    n_recent = store.unselectable_recent()
    twin.select(torch.arange(10, 120).expand(2, 2, -1))
    assert all(torch.equal(ours, old) for ours, old in zip(store.read(), before, strict=True))
    assert store.unselectable_recent() == n_recent


def test_a_quantizer_that_does_not_fit_the_head_is_told():
    with pytest.raises(KvatlasError, match="multiple of 32"):
        filled("kivi4", 96, 80)


def test_unknown_quantizers_and_storages_are_told_in_one_line():
    with pytest.raises(KvatlasError, match="'int3' is unknown; use one of"):
        make_store("int3")
    with pytest.raises(KvatlasError, match="use packed or simulated"):
        make_store("int4", "zipped")
    assert make_store("none") is PlainStore


# -- whole caches

BUDGET = Budget("80", n_sinks=2, n_recent=8)
TOKENS, BLOCK, ANSWER = 128, 32, 4
ONE_PER_POLICY = list({spec["name"]: spec for spec in reversed(SPECS)}.values())


@pytest.fixture(scope="module")
def lm() -> LanguageModel:
    wrapped = LanguageModel.wrap(tiny_model("qwen2", layers=2, heads=4, kv_heads=2, head_dim=32))
    return LanguageModel(wrapped.model, wrapped.tokenizer, wrapped.rotary, stop_ids=())


def prompt(tokens: int = TOKENS, batch: int = 2) -> torch.Tensor:
    return torch.randint(5, 400, (batch, tokens), generator=torch.Generator().manual_seed(tokens))


def answered(lm: LanguageModel, spec: dict, quantizer: str, storage: str, schedule: str):
    """What a prompt is answered with, the cache behind it, and the most slots that a layer ever held."""
    policy = make_policy(spec)
    cache = lm.new_cache(policy.observation() if policy else None, make_store(quantizer, storage))
    ids = prompt()
    compressor = Compressor(policy, BUDGET if policy else None, TOKENS, lm.rotary, [1, 2], ids % 3)
    most = 0

    def compress() -> None:
        nonlocal most
        most = max([most, *(layer.n_slots for layer in cache.layers)])
        compressor(cache)

    with torch.inference_mode():
        blocks = schedule != "after_prefill"
        lm.prefill(ids[:, :-1], cache, BLOCK if blocks else 0, compress if blocks else None)
        compress()
        own = greedy(lm, cache, ids[:, -1:], ANSWER, compress if schedule == "every_step" else None)
    return own, cache, most


@pytest.mark.parametrize("schedule", ["after_prefill", "every_block", "every_step"])
@pytest.mark.parametrize("quantizer", QUANTIZERS)
@pytest.mark.parametrize("spec", [{"name": "full"}, *ONE_PER_POLICY], ids=label)
def test_packed_and_simulated_caches_answer_with_the_same_bits(spec, quantizer, schedule, lm):
    packed, held, _ = answered(lm, spec, quantizer, "packed", schedule)
    simulated, imitated, _ = answered(lm, spec, quantizer, "simulated", schedule)
    assert torch.equal(packed.ids, simulated.ids)
    assert torch.equal(packed.nlls, simulated.nlls)
    assert torch.equal(packed.hidden, simulated.hidden)
    for ours, theirs in zip(held.layers, imitated.layers, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.store.read(), theirs.store.read(), strict=True))
    assert held.nbytes == imitated.nbytes
    assert held.peak_nbytes == imitated.peak_nbytes


@pytest.mark.parametrize("quantizer", ["none", "int8", "int4", "kivi4"])
@pytest.mark.parametrize("spec", ONE_PER_POLICY, ids=label)
def test_the_peak_stays_within_the_budget_and_one_block(spec, quantizer, lm):
    """No more slots at any time than budget + block, and no more bytes than a cache of so many slots takes."""
    _, cache, most = answered(lm, spec, quantizer, "packed", "every_step")
    assert cache.tokens_written == TOKENS + ANSWER - 1
    assert most <= 80 + BLOCK or spec["name"] in UNEVEN
    full = lm.new_cache(make_policy(spec).observation(), make_store(quantizer))
    with torch.inference_mode():
        lm.prefill(prompt(80 + BLOCK), full)
    # Beside what an untouched cache holds: explicit positions, and masses where slots are merged.
    beside = 2 * sum(layer.n_slots * 2 * 2 * 4 for layer in full.layers)
    if quantizer == "kivi4":
        # Slots that are left of a group keep the whole group's scales, and carry its number.
        groups = max(layer.store.keys.n_groups for layer in cache.layers)
        beside += 2 * 2 * 2 * (groups * 32 * 4 + 2 * (80 + BLOCK)) + 2 * 2 * 2 * 2 * GROUP * 32 * 2
    assert cache.peak_nbytes <= full.nbytes + beside


def walk_columns(cache: CompressedCache) -> int:
    return sum(column.nbytes for layer in cache.layers for column in layer.slot_statistics.values())


def test_fp32_and_full_reproduce_plain_greedy_generation():
    ids = prompt(60)
    plain = tiny_model("qwen2")
    expected = plain.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)[:, 60:]
    wrapped = LanguageModel.wrap(tiny_model("qwen2"), tiny_tokenizer())
    lm = LanguageModel(wrapped.model, wrapped.tokenizer, wrapped.rotary, stop_ids=())
    for storage in ("packed", "simulated"):
        cache = lm.new_cache(None, make_store("fp32", storage))
        compressor = Compressor(None, None, 60, lm.rotary, [1, 2])
        with torch.inference_mode():
            lm.prefill(ids[:, :-1], cache, 16, partial(compressor, cache))
            own = greedy(lm, cache, ids[:, -1:], 20, partial(compressor, cache))
        assert own.ids.tolist() == expected.tolist()


@pytest.mark.parametrize("quantizer", QUANTIZERS)
def test_a_quantizer_changes_what_the_first_forward_pass_sees(quantizer, lm):
    """Codes are written and read inside the pass, so even a single forward pass over a prompt is affected."""
    ids = prompt()
    with torch.inference_mode():
        plain = lm.prefill(ids, lm.new_cache())
        rounded = lm.prefill(ids, lm.new_cache(None, make_store(quantizer)))
    assert torch.equal(plain, rounded) == (QUANTIZERS[quantizer].bits == 32)


def test_quantizing_a_compressed_cache_writes_its_kept_slots_through_the_quantizer(lm):
    cache = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(prompt(), cache)
        Compressor(make_policy({"name": "random"}), BUDGET, TOKENS, lm.rotary, [1, 2])(cache)
        kept = [copy.copy(layer.store) for layer in cache.layers]
        quantize(cache, make_store("int8"))
    for layer, old in zip(cache.layers, kept, strict=True):
        fresh = make_store("int8")()
        fresh.append(*old.read())
        assert torch.equal(layer.store.read()[0], fresh.read()[0])
        assert layer.n_slots == 80
    assert cache.nbytes == held_nbytes(cache)


# -- the published sizes


@pytest.fixture(scope="module")
def half_billion() -> LanguageModel:
    """Random weights in the shape of Qwen2.5-0.5B's cache: 24 layers, 2 KV heads, head dimension 64."""
    return LanguageModel.wrap(tiny_model("qwen2", layers=24, heads=4, kv_heads=2, head_dim=64, hidden_size=32))


PUBLISHED_KIB = [
    ("fp32", None, 7416),
    ("fp16", None, 3708),
    ("fp8", None, 1854),
    ("int8", None, 1970),
    ("int4", None, 1043),
    ("int2", None, 579),
    ("none", "sliding_window", 3720),
    ("none", "attention_sink", 3720),
    ("none", "heavy_hitter", 3720),
    ("none", "random", 3720),
    ("int8", "attention_sink", 988),
    ("int4", "heavy_hitter", 523),
]


@pytest.mark.parametrize(("quantizer", "method", "kib"), PUBLISHED_KIB)
def test_published_sizes_are_the_bytes_of_the_tensors(quantizer, method, kib, half_billion):
    policy = make_policy({"name": method or "full"})
    cache = half_billion.new_cache(policy.observation() if policy else None, make_store(quantizer))
    budget = Budget("50%", 4, 32) if policy else None
    compressor = Compressor(policy, budget, PROMPT, half_billion.rotary, [1])
    with torch.inference_mode():
        half_billion.prefill(prompt(PROMPT, 1), cache, 32, lambda: compressor(cache))
    assert {layer.n_slots for layer in cache.layers} == {NEW if policy else PROMPT}
    held = sum(tensor.numel() * tensor.element_size() for layer in cache.layers for tensor in layer.store.tensors())
    assert cache.payload_nbytes == held
    assert round(held / 1024) == kib
    assert cache.nbytes == held_nbytes(cache) == held + walk_columns(cache)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_a_registration_says_the_bits_and_the_granularity_of_its_store(name):
    registration = QUANTIZERS[name]
    tokens, width = 96, 64
    store = filled(name, tokens, width)
    n_coded = tokens - store.unselectable_recent()
    codes = 2 * 2 * 2 * width * n_coded * registration.bits // 8
    residual = 2 * 2 * 2 * width * store.unselectable_recent() * 2
    scaled = store.nbytes - residual > codes
    assert scaled == (registration.granularity != "")
    assert store.nbytes >= codes + residual
