"""Quantizer error cell: how far one quantizer's keys and values are from a real model's, layer by layer.

Chunks of a text are prefilled in full precision, and each layer's keys and values are written through the quantizer.
The trial of a chunk holds sums per layer (absolute and squared, of errors and of signals), so that errors can be pooled
over layers and chunks in any norm. Tokens that a format leaves unquantized (KIVI's residual) are left out of the sums.
Integers are measured at the other granularity too: `channel` scales keys and values per channel over 32 tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvatlas.compression.affine import affine_decode, affine_encode
from kvatlas.compression.build import make_store
from kvatlas.compression.methods import quantizers
from kvatlas.experiments import measures
from kvatlas.experiments.cell_file import Measured
from kvatlas.experiments.streams import stream_ids
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.stores import KVStore

TOKEN, CHANNEL, MIXED = "token", "channel", "keys per channel, values per token"
CHANNEL_GROUP = 32
SUMS = ("error_l1", "signal_l1", "error_sq", "signal_sq")


def measure(spec: Mapping[str, Any], inputs: Mapping[str, Path]) -> Measured:
    """Measure `spec["quantizer"]` on `spec["prompts"]` chunks of the text `inputs["text"]`, one trial each."""
    watch = measures.Stopwatch()
    context, quantizer = spec["context"], spec["quantizer"]
    trials = []
    with torch.inference_mode():
        with watch.timed("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
            text = inputs["text"].read_text(encoding="utf-8")
            chunks = stream_ids(lm, text, context * spec["prompts"]).view(spec["prompts"], context)
        with watch.timed("measure"):
            for number, ids in enumerate(tqdm(chunks, desc=quantizer, unit="chunk")):
                cache = lm.new_cache()
                lm.prefill(ids[None], cache)
                layers = [layer_errors(quantizer, *layer.store.read()) for layer in cache.layers]
                for granularity in layers[0]:
                    trials.append(_trial(spec, number, granularity, [layer[granularity] for layer in layers]))
    return Measured(trials, {**watch.seconds, **measures.device_record(lm)})


def layer_errors(quantizer: str, keys: Tensor, values: Tensor) -> dict[str, dict[str, Any]]:
    """Return one layer's sums per granularity, with bits, width and saturations; keys and values are `[1, K, T, d]`."""
    store = make_store(quantizer)()
    store.append(keys, values)
    n_coded = keys.shape[2] - store.unselectable_recent()
    registered = quantizers().get(quantizer)
    granularity = registered.granularity if registered else ""
    native = MIXED if granularity == "keys per channel" else TOKEN
    shape = {"head_dim": keys.shape[3], "saturated": store.saturated}
    sums = _sums(keys, values, *store.read(), n_coded)
    errors = {native: sums | shape | {"bits_per_value": _bits(store, keys, n_coded)}}
    if registered and granularity == "keys per token":
        n_grouped = keys.shape[2] // CHANNEL_GROUP * CHANNEL_GROUP
        read_keys, read_values = (_per_channel(tensor[:, :, :n_grouped], registered.bits) for tensor in (keys, values))
        sums = _sums(keys, values, read_keys, read_values, n_grouped)
        # A scale and a zero of 16 bits each serve the tokens of a group.
        errors[CHANNEL] = sums | shape | {"bits_per_value": registered.bits + 32 / CHANNEL_GROUP}
    return errors


def _per_channel(values: Tensor, bits: int) -> Tensor:
    groups = values.unflatten(2, (values.shape[2] // CHANNEL_GROUP, CHANNEL_GROUP))
    return affine_decode(*affine_encode(groups, bits, dim=3)).flatten(2, 3)


def _bits(store: KVStore, keys: Tensor, n_coded: int) -> float:
    """Return the bits per value of the coded tokens, from the tensors held; the residual is fp16."""
    per_token = 2 * keys.shape[0] * keys.shape[1] * keys.shape[3]
    residual = 2 * per_token * (keys.shape[2] - n_coded)
    total = sum(tensor.nbytes for tensor in store.tensors())
    return 8 * (total - residual) / (per_token * n_coded)


def _sums(keys: Tensor, values: Tensor, read_keys: Tensor, read_values: Tensor, n_coded: int) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name, true, read in (("key", keys, read_keys), ("value", values, read_values)):
        signal = true[:, :, :n_coded].double()
        error = read[:, :, :n_coded].double() - signal
        numbers = (error.abs().sum(), signal.abs().sum(), error.square().sum(), signal.square().sum())
        sums |= {f"{name}_{kind}": float(number) for kind, number in zip(SUMS, numbers, strict=True)}
    # How much the largest channel of the keys stands out: its mean magnitude over the median channel's.
    channels = keys.double().abs().mean(dim=2).flatten()
    sums["key_outlier"] = float(channels.max() / channels.median().clamp_min(1e-12))
    return sums


def _trial(spec: Mapping[str, Any], number: int, granularity: str, layers: list[dict[str, Any]]) -> dict[str, Any]:
    per_layer = (*(f"{name}_{kind}" for name in ("key", "value") for kind in SUMS), "key_outlier")
    return {
        **measures.identity(spec, "quantizer", "context"),
        "arm": spec["quantizer"],
        "id": f"{spec['text']}-{spec['context']}-{number}",
        "chunk": number,
        "granularity": granularity,
        "own": granularity != CHANNEL,
        "head_dim": layers[0]["head_dim"],
        "bits_per_value": layers[0]["bits_per_value"],
        "saturated": sum(layer["saturated"] for layer in layers),
        **{name: [layer[name] for layer in layers] for name in per_layer},
    }
