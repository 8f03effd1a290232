"""The KV cache that is physically made smaller.

A `CompressedCache` is a list of layers. Each layer holds its slots in a *store* (full precision here; quantized stores
live in `kvatlas.compression.quantizers`) and, beside them, per-slot *statistics*: the original position, the number of
tokens that a slot stands for, and the attention statistics that a policy reads. Whatever selects slots selects their
statistics with them. The cache knows nothing of policies: it selects or replaces slots on request, and counts bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from kvatlas.errors import KvatlasError
from kvatlas.lm.attention import attention_mass
from kvatlas.lm.query_statistics import add_queries
from kvatlas.lm.rope import Rotary
from kvatlas.lm.stores import KVStore, PlainStore, take_slots

POSITION = "position"
CLUSTER_SIZE = "cluster_size"
ATTENTION = "attention"
N_QUERIES = "n_queries"


def vote_name(window: int) -> str:
    """Name the statistic with the attention of the last `window` queries."""
    return f"vote{window}"


@dataclass(frozen=True)
class Observation:
    """Which attention statistics a cache keeps: the cumulative sum, the votes of the last `windows` queries, and the
    mean and scatter of the `queries` before RoPE.
    """

    cumulative: bool = False
    windows: tuple[int, ...] = ()
    queries: bool = False


class CompressedLayer(CacheLayerMixin):
    """One layer's slots: a store, and statistics `[B, K, S]` that are selected along with it."""

    is_sliding = False

    def __init__(self, store: KVStore, observation: Observation) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.store = store
        self.observation = observation
        self.slot_statistics: dict[str, Tensor] = {}
        self.query_statistics: dict[str, Tensor] = {}
        self.n_slots = 0
        self.proportional_attention = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: a store takes its shape from the first write."""
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write new slots and return all slots, as the attention reads them. Called by the model."""
        self.is_initialized = True
        self.store.append(key_states, value_states)
        self.n_slots += key_states.shape[2]
        for name, fill in self._new_statistics(key_states).items():
            old = self.slot_statistics.get(name)
            self.slot_statistics[name] = fill if old is None else torch.cat([old, fill], dim=2)
        return self.store.read()

    def _new_statistics(self, keys: Tensor) -> dict[str, Tensor]:
        zeros = torch.zeros(keys.shape[:3], dtype=torch.float32, device=keys.device)
        new = dict.fromkeys(self.observed_statistics(), zeros)
        if CLUSTER_SIZE in self.slot_statistics:
            new[CLUSTER_SIZE] = torch.ones_like(zeros)
        return new

    def observed_statistics(self) -> list[str]:
        """Return the names of the statistics that `observe` adds to."""
        names = [vote_name(window) for window in self.observation.windows]
        return names + ([ATTENTION, N_QUERIES] if self.observation.cumulative else [])

    def set_positions(self, first: int, n_new: int) -> None:
        """Record that the last `n_new` slots hold the tokens from position `first` on, once positions are explicit."""
        if POSITION not in self.slot_statistics:
            return
        old = self.slot_statistics[POSITION]
        new = torch.arange(first, first + n_new, dtype=torch.float32, device=old.device)
        self.slot_statistics[POSITION] = torch.cat([old, new.expand(*old.shape[:2], n_new)], dim=2)

    def positions(self) -> Tensor:
        """Return each slot's original position, `[B, K, S]` float32; implicit (0, 1, ...) until something is evicted."""
        if POSITION in self.slot_statistics:
            return self.slot_statistics[POSITION]
        # Any tensor has the batch and the heads in its shape; reading would decode a quantized layer.
        stored = next(self.store.tensors())
        steps = torch.arange(self.n_slots, dtype=torch.float32, device=stored.device)
        return steps.expand(*stored.shape[:2], self.n_slots)

    def bias(self) -> Tensor | None:
        """Return log(cluster size) `[B, K, S]` where slots are weighted by the tokens they stand for, else None."""
        return (
            self.slot_statistics[CLUSTER_SIZE].log()
            if self.proportional_attention and CLUSTER_SIZE in self.slot_statistics
            else None
        )

    def observe(self, query: Tensor, key: Tensor, scaling: float) -> None:
        """Add what the new queries `[B, H, Q, d]` see of the keys `[B, K, S, d]` to the statistics.

        A vote is the attention of the last `window` queries. When fewer come at once, the older votes fade by the share
        of the window that the new ones take, so that the statistic stays the vote of about `window` queries.
        """
        n_queries, bias = query.shape[2], self.bias()
        if self.observation.cumulative:
            self.slot_statistics[ATTENTION] = self.slot_statistics[ATTENTION] + attention_mass(
                query, key, scaling, bias
            )
            seen = torch.full((self.n_slots,), float(n_queries), device=key.device)
            seen[self.n_slots - n_queries :] = torch.arange(n_queries, 0, -1, dtype=torch.float32, device=key.device)
            self.slot_statistics[N_QUERIES] = self.slot_statistics[N_QUERIES] + seen
        for window in self.observation.windows:
            name, fresh = vote_name(window), min(window, n_queries)
            vote = attention_mass(query, key, scaling, bias, last=fresh)
            self.slot_statistics[name] = self.slot_statistics[name] * (1 - fresh / window) + vote

    def select(self, index: Tensor) -> None:
        """Keep the slots `index` `[B, K, n]` of each head, ascending, and their statistics."""
        self.slot_statistics[POSITION] = self.positions()
        self.store.select(index)
        self.slot_statistics = {name: take_slots(statistic, index) for name, statistic in self.slot_statistics.items()}
        self.n_slots = index.shape[2]

    def replace(self, keys: Tensor, values: Tensor, statistics: dict[str, Tensor]) -> None:
        """Write other slots instead, `[B, K, S', d]`, with all their statistics `[B, K, S']`."""
        self.store.replace(keys, values)
        self.slot_statistics = statistics
        self.n_slots = keys.shape[2]

    def fork(self) -> CompressedLayer:
        """Return a copy that can be written without changing this one."""
        copy = CompressedLayer(self.store.fork(), self.observation)
        copy.query_statistics = self.query_statistics
        copy.slot_statistics, copy.n_slots, copy.proportional_attention = (
            dict(self.slot_statistics),
            self.n_slots,
            self.proportional_attention,
        )
        copy.is_initialized = self.is_initialized
        return copy

    def get_seq_length(self) -> int:
        """Return the number of slots held."""
        return self.n_slots

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return (slots after the next write, 0); only transformers asks."""
        return self.n_slots + query_length, 0

    def get_max_length(self) -> int:
        """Return -1: no limit."""
        return -1


class CompressedCache(Cache):
    """A KV cache of `n_layers` layers that policies make smaller.

    Args:
        n_layers: layers of the model.
        observation: the attention statistics that are kept for the policy.
        make_store: builds the store of a layer; full precision by default.
        rotary: the model's rotation; only statistics of queries need it.
    """

    layers: list[CompressedLayer]  # type: ignore[assignment]

    def __init__(
        self,
        n_layers: int,
        observation: Observation | None = None,
        make_store: Callable[[], KVStore] = PlainStore,
        rotary: Rotary | None = None,
    ) -> None:
        seen = observation or Observation()
        self.rotary = rotary
        super().__init__(layers=[CompressedLayer(make_store(), seen) for _ in range(n_layers)])
        self.tokens_written = 0
        self.reindexed = False
        self.states_budgets = False
        self.peak_nbytes = 0

    def bias(self, layer_idx: int) -> Tensor | None:
        """Return what the attention adds to the logits of a layer's slots."""
        return self.layers[layer_idx].bias()

    def observe(self, layer_idx: int, query: Tensor, key: Tensor, scaling: float) -> None:
        """Keep the statistics of one layer. Raises KvatlasError where queries are asked for and cannot be un-rotated."""
        layer = self.layers[layer_idx]
        layer.observe(query, key, scaling)
        if layer.observation.queries:
            if self.rotary is None or self.reindexed:
                raise KvatlasError(
                    "cache: queries cannot be un-rotated without the model's rotation and true positions"
                )
            layer.query_statistics = add_queries(
                layer.query_statistics, query, scaling, self.tokens_written, self.rotary
            )

    def next_position(self) -> int:
        """Return the position of the next token: its true one, or its slot where positions are re-indexed."""
        return max(layer.n_slots for layer in self.layers) if self.reindexed else self.tokens_written

    def end_forward(self, n_new: int) -> None:
        """Close a forward pass that wrote `n_new` tokens: note their original positions and the peak size."""
        for layer in self.layers:
            layer.set_positions(self.tokens_written, n_new)
        self.tokens_written += n_new
        self.peak_nbytes = max(self.peak_nbytes, self.nbytes)

    def stop_observing(self) -> None:
        """Drop the attention statistics, and keep none from now on: nothing will be evicted any more."""
        for layer in self.layers:
            layer.observation = Observation()
            layer.query_statistics = {}
            layer.slot_statistics = {
                name: layer.slot_statistics[name] for name in (POSITION, CLUSTER_SIZE) if name in layer.slot_statistics
            }

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor held, of all prompts: keys, values, scales, positions, cluster sizes and statistics."""
        statistics = (layer.slot_statistics | layer.query_statistics for layer in self.layers)
        return self.payload_nbytes + sum(tensor.nbytes for named in statistics for tensor in named.values())

    @property
    def payload_nbytes(self) -> int:
        """Bytes of keys and values with their scales and zero points alone, of all prompts."""
        return sum(layer.store.nbytes for layer in self.layers)

    @property
    def reserved_nbytes(self) -> int:
        """Bytes of the memory in which all of it lies: what is used and the room behind it, shared memory once.

        In `simulated` storage these are the floats that are held, where `nbytes` counts codes.
        """
        statistics = [layer.slot_statistics | layer.query_statistics for layer in self.layers]
        held = [tensor for named in statistics for tensor in named.values()]
        held += [tensor for layer in self.layers for tensor in layer.store.tensors()]
        storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in held)}
        return sum(storages.values())

    @property
    def saturated(self) -> int:
        """Values written so far that the storage format could not reach and clamped, of all prompts."""
        return sum(layer.store.saturated for layer in self.layers)

    def fork(self) -> CompressedCache:
        """Return a copy that can be written without changing this one; what both have is shared."""
        copy = CompressedCache(0, rotary=self.rotary)
        copy.layers = [layer.fork() for layer in self.layers]
        copy.tokens_written, copy.reindexed, copy.peak_nbytes = self.tokens_written, self.reindexed, self.peak_nbytes
        copy.states_budgets = self.states_budgets
        return copy
