"""Attention loss cell: how far a policy's order of eviction is from the order that would lose the least attention.

ALR (arXiv 2406.11430, section 3): drop slots one by one, in the policy's order and in ascending order of attention; ALR
is the sum over m of L^m - L^m_best, L^m being the attention mass of the first m dropped. Choices made here: the context
is written first, and the queries that look at it are the tokens right behind it, so that no policy is judged by the
queries that voted in it; what they see of each other is not evictable and not counted; ALR is divided by the number of
slots. It is computed for every query head with the order of its KV head (eviction acts per KV head), and once more per
KV head with the attention averaged over the group. One trial per prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvatlas.compression.build import make_policy
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.errors import KvatlasError
from kvatlas.experiments import measures
from kvatlas.experiments.cell_file import Measured
from kvatlas.lm.attention import attention_chunks
from kvatlas.lm.chat import bos_ids, encode_text
from kvatlas.lm.loading import LanguageModel


def ranks(values: Tensor) -> Tensor:
    """Return the rank of each slot in ascending order of `values` `[..., T]`, from 0; among equals the older first."""
    order = values.float().sort(dim=-1, stable=True).indices
    return torch.empty_like(order).scatter_(-1, order, torch.arange(values.shape[-1]).to(order).expand_as(order))


def attention_loss(attention: Tensor, scores: Tensor) -> Tensor:
    """Return ALR / T of dropping slots in ascending order of `scores`, for attention `[..., T]`; the result is `[...]`.

    The slot that is dropped as number r is part of T - r + 1 sums, so the sum over m is one weighted sum over slots.
    """
    ideal, actual = ranks(attention), ranks(scores)
    return (attention.double() * (ideal - actual)).sum(dim=-1) / attention.shape[-1]


def random_loss(attention: Tensor) -> Tensor:
    """Return the expected ALR / T of a random order, `[...]`: the mean rank of a slot is (T - 1) / 2."""
    n_slots = attention.shape[-1]
    return (attention.double() * (ranks(attention) - (n_slots - 1) / 2)).sum(dim=-1) / n_slots


@dataclass
class Capture:
    """A tap that keeps each layer's attention of the new queries to the first `n_slots` slots, `[K, G, Q, T]` fp32."""

    n_slots: int
    attention: list[Tensor] = field(default_factory=list)

    def bias(self, layer_idx: int) -> Tensor | None:
        """Return None: attention is looked at as it is."""
        return None

    def observe(self, layer_idx: int, query: Tensor, key: Tensor, scaling: float) -> None:
        """Keep the attention of a layer."""
        chunks = [chunk[0, ..., : self.n_slots] for _, chunk in attention_chunks(query, key, scaling)]
        self.attention.append(torch.cat(chunks, dim=2))


def prompt_ids(lm: LanguageModel, text: str, length: int, prompts: int) -> list[Tensor]:
    """Cut `prompts` stretches of `length` tokens from the text, evenly spaced and disjoint, `[1, length]` each.

    Each begins with the token that the tokenizer itself puts in front of a text, if it puts one.
    Raises KvatlasError when the text is too short.
    """
    bos, ids = bos_ids(lm.tokenizer), encode_text(lm.tokenizer, text)
    step, own = len(ids) // prompts, length - len(bos)
    if step < own:
        raise KvatlasError(
            f"prompts: the text's {len(ids)} tokens do not hold {prompts} prompts of {length} tokens; "
            "use fewer or shorter prompts, or a longer text"
        )
    return [lm.ids([[*bos, *ids[start * step : start * step + own]]]) for start in range(prompts)]


def losses(lm: LanguageModel, policy: EvictionPolicy, ids: Tensor, context: int, seed: int) -> dict[str, Any]:
    """Measure one prompt; returns nested lists `[layers][heads]`, means over the queries, and their spread.

    alr, random_alr: per query head, of the policy and expected of a random order. alr_sd: standard deviation over the
    queries. alr_kv, random_alr_kv: the same per KV head.
    """
    cache = lm.new_cache(policy.observation())
    lm.prefill(ids[:, :context], cache)
    scores = [
        policy.scores(layer, PromptContext(lm.rotary, [seed], layer_idx=index))[0]
        for index, layer in enumerate(cache.layers)
    ]
    capture = Capture(context)
    lm.forward(ids[:, context:], cache, capture)
    names = ("alr", "alr_sd", "random_alr", "alr_kv", "random_alr_kv")
    heads: dict[str, list[list[float]]] = {name: [] for name in names}
    for attention, score in zip(capture.attention, scores, strict=True):
        per_query = attention_loss(attention, score[:, None, None].expand_as(attention)).flatten(0, 1)
        shared = attention.mean(dim=1)
        heads["alr"].append(per_query.mean(dim=1).tolist())
        heads["alr_sd"].append(per_query.std(dim=1, correction=1 if per_query.shape[1] > 1 else 0).tolist())
        heads["random_alr"].append(random_loss(attention).flatten(0, 1).mean(dim=1).tolist())
        heads["alr_kv"].append(attention_loss(shared, score[:, None].expand_as(shared)).mean(dim=1).tolist())
        heads["random_alr_kv"].append(random_loss(shared).mean(dim=1).tolist())
    return heads


def measure(spec: Mapping[str, Any], inputs: Mapping[str, Path]) -> Measured:
    """Measure the policy of `spec` on prompts cut from `inputs["text"]` with the model folder `inputs["model"]`."""
    watch = measures.Stopwatch()
    policy = make_policy(spec["policy"])
    if not isinstance(policy, EvictionPolicy):
        raise KvatlasError(
            f"studies.attention_loss.methods: '{spec['method']}' has no order of eviction; use one that scores slots"
        )
    context, queries = spec["context"], spec["queries"]
    with torch.inference_mode():
        with watch.timed("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
            text = inputs["text"].read_text(encoding="utf-8")
            prompts: Sequence[Tensor] = prompt_ids(lm, text, context + queries, spec["prompts"])
        with watch.timed("measure"):
            shared = measures.identity(spec, "method", "text", "context", "queries")
            shared["policy"] = spec["policy"]["name"]
            trials = [
                shared
                | {"prompt": number, "id": f"{spec['text']}-{context}-p{number}"}
                | losses(lm, policy, ids, context, number)
                for number, ids in enumerate(tqdm(prompts, desc=f"attention loss {spec['arm']}", unit="prompt"))
            ]
    return Measured(trials, {**watch.seconds, **measures.device_record(lm)})
