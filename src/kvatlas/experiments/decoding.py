"""Greedy decoding and teacher forcing of a batch over a cache; every experiment that generates uses these two.

Both start from the prompt tokens that the cache does not hold yet, so the first generated token always comes from the
cache as it is, compressed or not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kvatlas.lm.cache import CompressedCache
from kvatlas.lm.loading import LanguageModel

PADDING = -1


@dataclass
class Continuation:
    """What a batch generated.

    Args:
        ids: `[B, N]` token ids up to and with the stop token, then `PADDING`.
        nlls: `[B, N]` negative log-likelihood of each token under the model that chose it; 0 behind the stop token.
        hidden: `[B, D]` mean last hidden state over a row's tokens, fp32.
        step_seconds: duration of each decode step after the first forward pass.
    """

    ids: Tensor
    nlls: Tensor
    hidden: Tensor
    step_seconds: list[float] = field(default_factory=list)

    @property
    def mask(self) -> Tensor:
        """Which of `ids` are real tokens, `[B, N]` bool."""
        return self.ids != PADDING


def greedy(
    lm: LanguageModel,
    cache: CompressedCache,
    uncached: Tensor,
    new_tokens: int,
    after_step: Callable[[], None] | None = None,
) -> Continuation:
    """Decode up to `new_tokens` tokens greedily, without penalties, until every row has met a stop token.

    Args:
        uncached: `[B, q]` prompt tokens to feed first. after_step: called after a forward pass that another one may
            follow, for schedules that compress while they decode.
    """
    stops = torch.tensor(lm.stop_ids, device=lm.device)
    done = torch.zeros(uncached.shape[0], dtype=torch.bool, device=lm.device)
    ids, nlls, hiddens, seconds = [], [], [], []
    feed = uncached
    for step in range(new_tokens):
        started = time.perf_counter()
        hidden = lm.forward(feed, cache)[:, -1]
        best = lm.log_probs(hidden).max(dim=-1)
        if step:
            seconds.append(time.perf_counter() - started)
        ids.append(best.indices.masked_fill(done, PADDING))
        nlls.append((-best.values).masked_fill(done, 0.0))
        hiddens.append(hidden.float().masked_fill(done[:, None], 0.0))
        done = done | torch.isin(best.indices, stops)
        if bool(done.all()):
            break
        feed = best.indices[:, None]
        if after_step is not None:
            after_step()
    stacked = torch.stack(ids, dim=1)
    lengths = (stacked != PADDING).sum(dim=1, keepdim=True)
    return Continuation(stacked, torch.stack(nlls, dim=1), torch.stack(hiddens).sum(dim=0) / lengths, seconds)


def teacher_force(lm: LanguageModel, cache: CompressedCache, uncached: Tensor, target: Tensor) -> Tensor:
    """Return the log-probabilities `[B, N, V]` before each token of `target`, which is fed as one block.

    Args:
        uncached: `[B, q]` prompt tokens that come first. target: `[B, N]`, padded with `PADDING`; what is predicted behind
            a row's last token has no meaning.
    """
    block = torch.cat([uncached, target[:, :-1].clamp_min(0)], dim=1)
    hidden = lm.forward(block, cache)
    return lm.log_probs(hidden[:, uncached.shape[1] - 1 :])


def token_nlls(log_probs: Tensor, target: Tensor) -> Tensor:
    """Return the negative log-likelihood of each token, `[B, N]`; 0 where `target` is padding."""
    picked = -log_probs.gather(2, target.clamp_min(0)[..., None])[..., 0]
    return picked.masked_fill(target == PADDING, 0.0)


def padded(rows: list[list[int]], device: torch.device) -> Tensor:
    """Put token ids of unequal lengths into one tensor `[B, N]`, padded with `PADDING` at the end."""
    width = max(len(row) for row in rows)
    filled = [row + [PADDING] * (width - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.long, device=device)
