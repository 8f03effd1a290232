"""The attention function that every model runs, and the statistics that policies read from it.

transformers' public attention interface hands over (module, query, key, value) after RoPE for every layer of every
architecture that supports it, so nothing is patched. The function masks causally in the lower-right sense, so that it
serves any number of new queries over any number of cached slots, and shows query and key to a *tap*.
It knows nothing of policies or budgets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface

from kvatlas.errors import KvatlasError

ATTENTION_NAME = "kvatlas"
UNSUPPORTED = {"softcap": "caps its attention logits", "s_aux": "has attention sinks of its own"}
"""Keywords with which a model changes its softmax -> what they mean."""
QUERY_CHUNK = 128
# A decode step over at least so many slots on a CPU reads each key once for all queries of its group.
PACKED_FROM = 2048


class AttentionTap(Protocol):
    """What a forward pass may carry along: it biases slots and looks at queries and keys."""

    def bias(self, layer_idx: int) -> Tensor | None:
        """Return what is added to the attention logits of each slot, `[B, K, S]` float, or None."""

    def observe(self, layer_idx: int, query: Tensor, key: Tensor, scaling: float) -> None:
        """See the post-RoPE queries `[B, H, Q, d]` and all keys `[B, K, S, d]` of one layer."""


def causal_mask(n_queries: int, n_slots: int, device: torch.device, first: int = 0) -> Tensor:
    """Return the lower-right causal mask of queries `first ...` out of those that end at the last slot.

    The result is `[n_queries - first, n_slots]` bool, True where a query may look.
    """
    rows = torch.arange(first, n_queries, device=device)[:, None] + (n_slots - n_queries)
    return torch.arange(n_slots, device=device)[None, :] <= rows


def attend(query: Tensor, key: Tensor, value: Tensor, scaling: float | None, bias: Tensor | None) -> Tensor:
    """Causal grouped-query attention of `[B, H, Q, d]` queries over `[B, K, S, d]` slots; returns `[B, H, Q, d]`.

    The Q queries are those of the last Q slots. `bias` `[B, K, S]` is added to the logits of every query of a group.
    """
    n_queries, n_slots = query.shape[2], key.shape[2]
    grouped = query.shape[1] != key.shape[1]
    if grouped and bias is None and n_queries == 1 and n_slots >= PACKED_FROM and key.device.type == "cpu":
        # Without a mask, the queries of a group are like several of one head. Sums come in another order than below.
        packed = query.reshape(query.shape[0], key.shape[1], -1, query.shape[-1])
        return F.scaled_dot_product_attention(packed, key, value, scale=scaling).reshape(query.shape)
    mask: Tensor | None = None
    if n_queries not in (1, n_slots) or (bias is not None and n_queries > 1):
        mask = causal_mask(n_queries, n_slots, query.device)
    if bias is not None:
        additive = bias.to(query.dtype).repeat_interleave(query.shape[1] // key.shape[1], dim=1)[:, :, None, :]
        mask = additive if mask is None else additive.masked_fill(~mask, float("-inf"))
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None and n_queries > 1,
        scale=scaling,
        enable_gqa=grouped,
    )


def attention_forward(  # noqa: PLR0917 (transformers calls it with these, in this order)
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    tap: AttentionTap | None = None,
    n_seen: int = 0,
    **features: Any,
) -> tuple[Tensor, None]:
    """Attend for one layer, in the form that transformers calls; returns `[B, Q, H, d]` and no weights.

    Prompts of a batch have equal lengths, so the model's own mask is never needed and never built. `n_seen` is the number
    of tokens of a prompt up to the last query, evicted ones included. Raises KvatlasError for a layer that does not hand
    over what a forward pass carries along, or attends in a way that this function does not.
    """
    layer_idx = int(module.layer_idx)  # type: ignore[arg-type]
    if tap is None:
        raise KvatlasError(f"model: layer {layer_idx} hands no keywords to its attention, so nothing can observe it")
    _refuse(layer_idx, n_seen, features)
    output = attend(query, key, value, scaling, tap.bias(layer_idx))
    tap.observe(layer_idx, query, key, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return output.transpose(1, 2).contiguous(), None


def _refuse(layer_idx: int, n_seen: int, features: Mapping[str, Any]) -> None:
    """Raise KvatlasError where the model asks for more than causal attention over all slots."""
    window = features.get("sliding_window")
    if window is not None and n_seen > window:
        raise KvatlasError(
            f"model: layer {layer_idx} attends within a sliding window of {window} tokens, and a prompt has {n_seen}; "
            f"keep contexts with their answers to {window} tokens"
        )
    for name, what in UNSUPPORTED.items():
        if features.get(name) is not None:
            raise KvatlasError(f"model: layer {layer_idx} {what}, which is not supported; use another model")


AttentionInterface.register(ATTENTION_NAME, attention_forward)


def attention_chunks(
    query: Tensor, key: Tensor, scaling: float, bias: Tensor | None = None, chunk: int = QUERY_CHUNK
) -> Iterator[tuple[int, Tensor]]:
    """Yield the causal softmax attention in chunks of queries, in fp32.

    Each item is (index of the chunk's first query, probabilities `[B, K, G, q, s]`), where only the first s slots can
    be seen by the chunk. The memory needed is O(chunk x S) per head, never Q x S.
    """
    batch, n_heads, n_queries, width = query.shape
    n_kv, n_slots = key.shape[1], key.shape[2]
    grouped = query.reshape(batch, n_kv, n_heads // n_kv, n_queries, width)
    for start in range(0, n_queries, chunk):
        stop = min(start + chunk, n_queries)
        seen = n_slots - n_queries + stop
        logits = torch.einsum("bkgqd,bksd->bkgqs", grouped[:, :, :, start:stop].float(), key[:, :, :seen].float())
        logits *= scaling
        if bias is not None:
            logits += bias[:, :, None, None, :seen]
        logits.masked_fill_(~causal_mask(stop - start, seen, query.device), float("-inf"))
        yield start, torch.softmax(logits, dim=-1)


def attention_mass(query: Tensor, key: Tensor, scaling: float, bias: Tensor | None = None, *, last: int = 0) -> Tensor:
    """Sum the causal attention that each slot receives, and take the mean over the heads of a group.

    Args:
        query: `[B, H, Q, d]`, key: `[B, K, S, d]`, both post-RoPE; the queries are those of the last Q slots.
        scaling: factor on the logits. bias: `[B, K, S]` added to them, or None.
        last: only the last so many queries vote; 0 means all of them.

    Returns:
        `[B, K, S]` float32.
    """
    if last and last < query.shape[2]:
        query = query[:, :, -last:]
    total = torch.zeros(key.shape[:3], dtype=torch.float32, device=key.device)
    for _, probabilities in attention_chunks(query, key, scaling, bias):
        total[..., : probabilities.shape[-1]] += probabilities.sum(dim=3).mean(dim=2)
    return total
