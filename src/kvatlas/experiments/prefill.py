"""Prefill cell: run a batch of prompts once, and store all that the arms need to go on from there.

The file holds keys and values of every layer in the model's dtype (a fork is exact), the attention statistics of the
prompt, and the full cache's own greedy continuation with its log-probabilities, which is the reference of every arm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from kvatlas.errors import KvatlasError
from kvatlas.experiments.decoding import PADDING, greedy, teacher_force
from kvatlas.files import atomic_path, read_jsonl
from kvatlas.lm.cache import CompressedCache, Observation, PlainStore
from kvatlas.lm.loading import LanguageModel

# Prompts are prefilled together up to this many tokens: enough to fill a machine, little enough for its memory.
BATCH_TOKENS = 8192


@dataclass(frozen=True)
class Reference:
    """The full cache's greedy continuation.

    Args:
        ids: `[B, N]`, padded. log_probs: `[B, N, V]` before each of them, from one teacher-forced block.
        hidden: `[B, D]` mean last hidden state of the generated tokens.
    """

    ids: Tensor
    log_probs: Tensor
    hidden: Tensor


def prompt_rows(prompts: Sequence[Mapping[str, Any]], size: int) -> Iterable[range]:
    """Split the rows of a batch into runs of at most `size`."""
    return [range(start, min(start + size, len(prompts))) for start in range(0, len(prompts), size)]


def prefill_rows(
    lm: LanguageModel, prompts: Sequence[Mapping[str, Any]], observation: Observation, block: int
) -> CompressedCache:
    """Run the compressed part of equally long prompts through the model and return the full cache."""
    cache = lm.new_cache(observation)
    n_compress = prompts[0]["n_compress"]
    lm.prefill(lm.ids([prompt["ids"][:n_compress] for prompt in prompts]), cache, block)
    return cache


def uncached_tokens(lm: LanguageModel, prompts: Sequence[Mapping[str, Any]]) -> Tensor:
    """Return the prompt tokens that are fed after the compression, `[B, q]`."""
    return lm.ids([prompt["ids"][prompt["n_compress"] :] for prompt in prompts])


def reference_of(
    lm: LanguageModel, cache: CompressedCache, prompts: Sequence[Mapping[str, Any]], new_tokens: int
) -> Reference:
    """Let the full cache answer, and score its answer by teacher forcing."""
    rest = uncached_tokens(lm, prompts)
    own = greedy(lm, cache.fork(), rest, new_tokens)
    ids = torch.full((len(prompts), new_tokens), PADDING, dtype=torch.long, device=lm.device)
    ids[:, : own.ids.shape[1]] = own.ids
    return Reference(ids, teacher_force(lm, cache.fork(), rest, ids), own.hidden)


def run(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Prefill the prompts `inputs["prompts"]` with the model folder `inputs["model"]` into a safetensors file."""
    prompts = read_jsonl(inputs["prompts"])
    lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
    observation = Observation(cumulative=True, windows=tuple(spec["windows"]))
    parts: list[dict[str, Tensor]] = []
    size = max(1, BATCH_TOKENS // len(prompts[0]["ids"]))
    with torch.inference_mode():
        for rows in tqdm(prompt_rows(prompts, size), desc=f"prefill {spec['mode']} {spec['context']}", unit="batch"):
            batch = [prompts[row] for row in rows]
            cache = prefill_rows(lm, batch, observation, spec["block"])
            reference = reference_of(lm, stopped(cache), batch, spec["new_tokens"])
            parts.append({**_tensors(cache), **{f"reference.{k}": v.cpu() for k, v in vars(reference).items()}})
    joined = {name: _join([part.pop(name) for part in parts]) for name in list(parts[0])}
    with atomic_path(output) as part:
        save_file(joined, part, metadata={"tokens": str(prompts[0]["n_compress"])})


def stopped(cache: CompressedCache) -> CompressedCache:
    """Return a fork that keeps no more statistics: what follows the prompt must not change what a policy sees."""
    fork = cache.fork()
    fork.stop_observing()
    return fork


def _join(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _tensors(cache: CompressedCache) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    for index, layer in enumerate(cache.layers):
        keys, values = layer.store.read()
        named |= {f"keys.{index}": keys, f"values.{index}": values}
        named |= {f"{name}.{index}": column for name, column in layer.slot_statistics.items()}
    return {name: tensor.contiguous().cpu() for name, tensor in named.items()}


def load(
    path: Path, lm: LanguageModel, observation: Observation, rows: range | None = None
) -> tuple[CompressedCache, Reference]:
    """Read a prefill file, or some of its rows, into a full cache with the statistics of `observation`, and its
    reference.

    Raises KvatlasError when the file is broken or lacks a statistic.
    """
    names = [name for layer in lm.new_cache(observation).layers[:1] for name in layer.statistics()]
    try:
        with safe_open(path, framework="pt") as file:
            part = slice(None) if rows is None else slice(rows.start, rows.stop)
            get: Callable[[str], Tensor] = lambda name: file.get_slice(name)[part].to(lm.device)  # noqa: E731
            cache = lm.new_cache(observation)
            for index, layer in enumerate(cache.layers):
                layer.store = PlainStore(get(f"keys.{index}"), get(f"values.{index}"))
                layer.slot_statistics = {name: get(f"{name}.{index}") for name in names}
                layer.n_slots = layer.store.read()[0].shape[2]
            cache.tokens_written = int(file.metadata()["tokens"])
            reference = Reference(get("reference.ids"), get("reference.log_probs"), get("reference.hidden"))
    except (SafetensorError, KeyError, OSError) as error:
        raise KvatlasError(
            f"{path}: broken prefill file ({error}); delete it and run the same command again"
        ) from error
    cache.peak_nbytes = cache.nbytes
    return cache, reference
