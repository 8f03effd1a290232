"""Slots that are appended in place: reads, forks and bytes against plain concatenation."""

from __future__ import annotations

import pytest
import torch

from kvatlas.compression.build import make_store
from kvatlas.errors import KvatlasError
from kvatlas.grid.memory import ROOM, footprint
from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.growing import MIN_ROOM, ROOM_SHARE, GrowingSlots
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.stores import take_slots
from tests.support.quantizers import QUANTIZERS
from tests.support.tiny_models import tiny_model

STORES = ["none", *QUANTIZERS]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def address(slots: torch.Tensor) -> int:
    return slots.untyped_storage().data_ptr()


def test_appended_slots_are_read_as_if_they_were_concatenated():
    growing, parts = GrowingSlots(), []
    for step, length in enumerate([5, 1, 1, 40, 1, 300, 1, 1]):
        parts.append(normal(2, 3, length, 8, seed=step))
        growing.append(parts[-1])
        assert torch.equal(growing.used, torch.cat(parts, dim=2))


def test_a_decode_step_at_16384_slots_copies_none_of_them():
    growing = GrowingSlots(normal(1, 1, 16384, 2))
    growing.append(normal(1, 1, 1, 2))
    before = address(growing.used)
    for _ in range(16384 // ROOM_SHARE):
        growing.append(normal(1, 1, 1, 2))
        assert address(growing.used) == before
    growing.append(normal(1, 1, 1, 2))
    assert address(growing.used) != before


@pytest.mark.parametrize("name", STORES)
def test_every_store_copies_its_long_tensors_only_when_their_room_is_used_up(name):
    store = make_store(name)()
    store.append(normal(1, 1, 512, 64), normal(1, 1, 512, 64))
    moves, last = 0, None
    for step in range(200):
        store.append(normal(1, 1, 1, 64, seed=step), normal(1, 1, 1, 64, seed=step))
        places = [address(tensor) for tensor in store.tensors() if tensor.shape[2] >= 448]
        moves, last = moves + (last is not None and places != last), places
    # 512 slots grow past 1/8 and then past 1/8 of that; KIVI's 480 coded ones start a buffer of their own.
    assert moves <= 3
    assert store.read()[0].shape[2] == 712


@pytest.mark.parametrize("name", STORES)
def test_forks_of_a_cache_with_room_are_written_in_turn_and_never_see_each_other(name):
    """The first fork that writes takes the room, the others copy; each reads what it wrote itself."""
    origin = make_store(name)()
    for step in range(70):
        origin.append(normal(2, 2, 1, 64, seed=step), normal(2, 2, 1, 64, seed=100 + step))
    forks = [origin, origin.fork(), origin.fork(), origin.fork().fork()]
    alone = []
    for number in range(len(forks)):
        store = make_store(name)()
        for step in range(70):
            store.append(normal(2, 2, 1, 64, seed=step), normal(2, 2, 1, 64, seed=100 + step))
        alone.append(store)
        for step in range(40):
            seed = 1000 * number + step
            store.append(normal(2, 2, 1, 64, seed=seed), normal(2, 2, 1, 64, seed=seed))
    for step in range(40):
        for number, store in enumerate(forks):
            seed = 1000 * number + step
            store.append(normal(2, 2, 1, 64, seed=seed), normal(2, 2, 1, 64, seed=seed))
    for ours, expected in zip(forks, alone, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours.read(), expected.read(), strict=True))


def test_a_read_stays_what_it_was_whatever_is_appended_or_selected_later():
    store = make_store("none")()
    store.append(normal(1, 2, 20, 4), normal(1, 2, 20, 4))
    store.append(normal(1, 2, 1, 4), normal(1, 2, 1, 4))
    keys = store.read()[0]
    copy = keys.clone()
    twin = store.fork()
    for each in (store, twin):
        each.append(normal(1, 2, 3, 4, seed=9), normal(1, 2, 3, 4, seed=9))
        each.select(torch.arange(3, 20).expand(1, 2, -1))
        each.append(normal(1, 2, 3, 4, seed=8), normal(1, 2, 3, 4, seed=8))
    assert torch.equal(keys, copy)


def test_slots_of_inference_mode_can_be_appended_to_outside_of_it():
    growing = GrowingSlots()
    with torch.inference_mode():
        growing.append(normal(1, 1, 4, 2))
        growing.append(normal(1, 1, 1, 2))
    growing.append(normal(1, 1, 1, 2, seed=3))
    assert torch.equal(growing.used[:, :, 5:], normal(1, 1, 1, 2, seed=3))


@pytest.mark.parametrize(
    "new", [normal(1, 3, 1, 8), normal(2, 3, 1, 1), normal(2, 3, 1, 8).half()], ids=["batch", "width", "dtype"]
)
def test_slots_of_another_shape_or_dtype_are_refused(new):
    growing = GrowingSlots(normal(2, 3, 5, 8))
    with pytest.raises(KvatlasError, match="cannot be written behind"):
        growing.append(new)
    assert torch.equal(growing.used, normal(2, 3, 5, 8))


def test_a_view_of_something_larger_is_copied_so_that_the_rest_is_freed():
    joined = normal(2, 3, 50, 8)
    growing = GrowingSlots(joined[:, :, :10])
    assert growing.used.untyped_storage().nbytes() == growing.used.nbytes
    assert torch.equal(growing.used, joined[:, :, :10])


@pytest.mark.parametrize("layout", ["contiguous", "with room", "transposed", "every other channel"])
def test_slots_are_taken_from_any_layout_as_gather_takes_them(layout):
    base = normal(2, 3, 40, 8)
    tensor = {
        "contiguous": lambda: base,
        "with room": lambda: normal(2, 3, 60, 8)[:, :, :40],
        "transposed": lambda: normal(2, 40, 3, 8).transpose(1, 2),
        "every other channel": lambda: normal(2, 3, 40, 16)[..., ::2],
    }[layout]()
    index = torch.rand(2, 3, 40, generator=torch.Generator().manual_seed(1)).argsort(dim=-1)[..., :17]
    expected = tensor.gather(2, index[..., None].expand(-1, -1, -1, 8))
    assert torch.equal(take_slots(tensor, index), expected)


@pytest.mark.parametrize("wrong", [-1, 40])
def test_a_slot_that_is_not_there_is_refused_and_not_read_from_another_head(wrong):
    with pytest.raises(KvatlasError, match="of 40 were asked for"):
        take_slots(normal(2, 3, 60, 8)[:, :, :40], torch.full((2, 3, 1), wrong))


def storages(cache: CompressedCache) -> int:
    held = [t for layer in cache.layers for t in (*layer.store.tensors(), *layer.slot_statistics.values())]
    return sum({address(tensor): tensor.untyped_storage().nbytes() for tensor in held}.values())


def test_reserved_bytes_are_those_of_the_memory_and_at_most_a_quarter_above_the_used_ones():
    lm = LanguageModel.wrap(tiny_model("llama"))
    cache = lm.new_cache()
    ids = torch.randint(5, 400, (2, 130), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        lm.prefill(ids[:, :64], cache)
        assert cache.reserved_nbytes == cache.nbytes
        for token in ids[:, 64:].split(1, dim=1):
            lm.forward(token, cache)
            assert cache.nbytes <= cache.reserved_nbytes == storages(cache) <= 1.25 * cache.nbytes
    slot = cache.payload_nbytes // 130
    # 64 + 1 slots get 16 more; the 82nd 16 more, and so on.
    room = next(n for n in range(65, 200, MIN_ROOM + 1) if n + MIN_ROOM >= 130) + MIN_ROOM
    assert cache.reserved_nbytes == room * slot
    fork = cache.fork()
    assert fork.reserved_nbytes == cache.reserved_nbytes


def test_the_estimate_of_memory_covers_a_prompt_in_blocks_and_a_fork_that_had_to_copy_it():
    shape = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
    lm = LanguageModel.wrap(tiny_model("llama", **shape))
    cache = lm.new_cache()
    token = torch.zeros(1, 1, dtype=torch.long)
    with torch.inference_mode():
        lm.prefill(torch.zeros(1, 256, dtype=torch.long), cache, 200)
        first, second = cache.fork(), cache.fork()
        lm.forward(token, first)
        lm.forward(token, second)
    assert ROOM == 1 / ROOM_SHARE
    first_places, second_places = ({address(t) for t in each.layers[0].store.tensors()} for each in (first, second))
    assert first_places == {address(t) for t in cache.layers[0].store.tensors()}
    assert not first_places & second_places
    held = (cache.reserved_nbytes + second.reserved_nbytes) / 2**20
    assert held <= footprint(shape, 4, 257, 0).per_prompt <= 1.01 * held
