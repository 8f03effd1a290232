"""Prefill cell: run a batch of prompts once, and store all that the arms need to go on from there.

Beside the cache stands the full cache's own greedy continuation with its log-probabilities: the reference of every arm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from kvatlas.experiments import prompt_batches
from kvatlas.experiments.decoding import PADDING, greedy, teacher_force
from kvatlas.experiments.prefill_tensors import Reference, named_tensors, save
from kvatlas.experiments.prompt_batches import Prompt
from kvatlas.files import read_jsonl
from kvatlas.lm.cache import CompressedCache, Observation
from kvatlas.lm.loading import LanguageModel

# Prompts are prefilled together up to this many tokens: enough to fill a machine, little enough for its memory.
BATCH_TOKENS = 8192


def write(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Prefill the prompts `inputs["prompts"]` with the model folder `inputs["model"]` into a safetensors file."""
    prompts = read_jsonl(inputs["prompts"])
    lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
    # Where queries cannot be un-rotated, the arms that need them are refused; all others run.
    queries = spec.get("queries", False) and not lm.rotary.refusal
    observation = Observation(cumulative=True, windows=tuple(spec["windows"]), queries=queries)
    batches: list[dict[str, Tensor]] = []
    size = max(1, BATCH_TOKENS // len(prompts[0]["ids"]))
    chunks = prompt_batches.split_rows(len(prompts), size)
    with torch.inference_mode():
        for rows in tqdm(chunks, desc=f"prefill {spec['mode']} {spec['context']}", unit="batch"):
            batch = [prompts[row] for row in rows]
            cache = prompt_batches.prefill(lm, batch, observation, spec["block"])
            reference = reference_of(lm, prompt_batches.fork_unobserved(cache), batch, spec["new_tokens"])
            batches.append(named_tensors(cache, reference))
            # What is stored is a copy without the cache's room; the next batch must not find both.
            del cache
    save(output, batches, prompts[0]["n_compress"])


def reference_of(lm: LanguageModel, cache: CompressedCache, prompts: Sequence[Prompt], new_tokens: int) -> Reference:
    """Let the full cache answer, and score its answer by teacher forcing."""
    uncached = prompt_batches.uncached_tokens(lm, prompts)
    continuation = greedy(lm, cache.fork(), uncached, new_tokens)
    ids = torch.full((len(prompts), new_tokens), PADDING, dtype=torch.long, device=lm.device)
    ids[:, : continuation.ids.shape[1]] = continuation.ids
    return Reference(ids, teacher_force(lm, cache.fork(), uncached, ids), continuation.hidden)
