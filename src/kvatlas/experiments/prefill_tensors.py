"""The file of a prefill: keys and values of every layer, the prompts' attention statistics, the full cache's answer.

Keys and values are in the model's dtype, so that a fork is exact. The prefill cell writes it, and every arm reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from kvatlas.errors import KvatlasError
from kvatlas.experiments.prompt_batches import split_rows
from kvatlas.files import atomic_path
from kvatlas.lm.cache import CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.query_statistics import QUERY_STATISTICS
from kvatlas.lm.stores import PlainStore


@dataclass(frozen=True)
class Reference:
    """The full cache's greedy continuation.

    Args:
        ids: `[B, N]`, padded. log_probs: `[B, N, V]` before each of them, from one teacher-forced block.
        hidden: `[B, D]` mean last hidden state of the generated tokens.
        as_batched: the prefill ran these rows, and no others, as one batch: the same cache gives the same bits again.
    """

    ids: Tensor
    log_probs: Tensor
    hidden: Tensor
    as_batched: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """Return what is stored of it."""
        return {"ids": self.ids, "log_probs": self.log_probs, "hidden": self.hidden}


def named_tensors(cache: CompressedCache, reference: Reference) -> dict[str, Tensor]:
    """Return the tensors of a batch by their names in the file, `[B, ...]` each, on the CPU."""
    named: dict[str, Tensor] = {}
    for index, layer in enumerate(cache.layers):
        keys, values = layer.store.read()
        named |= {f"keys.{index}": keys, f"values.{index}": values}
        statistics = layer.slot_statistics | layer.query_statistics
        named |= {f"{name}.{index}": statistic for name, statistic in statistics.items()}
    stored = {name: tensor.contiguous().cpu() for name, tensor in named.items()}
    return stored | {f"reference.{name}": tensor.cpu() for name, tensor in reference.tensors().items()}


def save(path: Path, batches: Sequence[dict[str, Tensor]], n_tokens: int) -> None:
    """Join the named tensors of batches of `n_tokens` tokens along their rows, and write them; the batches are emptied.

    Emptied, because a tensor of all rows must not be in memory twice. All batches but the last have as many rows.
    """
    metadata = {"tokens": str(n_tokens), "batch": str(len(batches[0]["reference.ids"]))}
    joined = {name: _join([batch.pop(name) for batch in batches]) for name in list(batches[0])}
    with atomic_path(path) as part:
        save_file(joined, part, metadata=metadata)


def _join(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def load(
    path: Path, lm: LanguageModel, observation: Observation, rows: range | None = None
) -> tuple[CompressedCache, Reference]:
    """Read a prefill file, or some of its rows, into a full cache with the statistics of `observation`, and its
    reference.

    Raises KvatlasError when the file is broken or lacks a statistic, or when the model's queries cannot be un-rotated and
    are asked for.
    """
    if observation.queries and lm.rotary.refusal:
        raise KvatlasError(lm.rotary.refusal)
    cache = lm.new_cache(observation)
    names = cache.layers[0].observed_statistics()
    try:
        with safe_open(path, framework="pt") as file:
            chosen = slice(None) if rows is None else slice(rows.start, rows.stop)
            get: Callable[[str], Tensor] = lambda name: file.get_slice(name)[chosen].to(lm.device)  # noqa: E731
            for index, layer in enumerate(cache.layers):
                layer.store = PlainStore(get(f"keys.{index}"), get(f"values.{index}"))
                layer.slot_statistics = {name: get(f"{name}.{index}") for name in names}
                if observation.queries:
                    layer.query_statistics = {name: get(f"{name}.{index}") for name in QUERY_STATISTICS}
                layer.n_slots = layer.store.read()[0].shape[2]
            cache.tokens_written = int(file.metadata()["tokens"])
            n_rows = file.get_slice("reference.ids").get_shape()[0]
            as_batched = (rows or range(n_rows)) in split_rows(n_rows, int(file.metadata()["batch"]))
            reference = Reference(get("reference.ids"), get("reference.log_probs"), get("reference.hidden"), as_batched)
    except (SafetensorError, KeyError, OSError) as error:
        raise KvatlasError(
            f"{path}: broken prefill file ({error}); delete it and run the same command again"
        ) from error
    cache.peak_nbytes = cache.nbytes
    return cache, reference
