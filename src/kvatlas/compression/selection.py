"""Choosing which slots stay, the same way for every policy: protected ends, then the highest scores.

Scores are fp32, and ties are broken by position (the newer slot stays): in bf16 hundreds of key norms tie at the cut,
and `topk` is not stable.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvatlas.compression.budget import SlotBudget
from kvatlas.errors import KvatlasError


def top_slots(scores: Tensor, n_keep: int) -> Tensor:
    """Return the indices of the `n_keep` highest scores of each head, ascending.

    Args:
        scores: `[B, K, S]`. n_keep: at most S.

    Returns:
        `[B, K, n_keep]` int64. Among equal scores the later slot stays.
    """
    if bool(scores.isnan().any()):
        raise KvatlasError("policy: its scores hold NaN; the model's keys or attention overflowed in this dtype")
    order = scores.float().sort(dim=-1, stable=True).indices
    return order[..., scores.shape[-1] - n_keep :].sort(dim=-1).values


def kept_slots(scores: Tensor, budget: SlotBudget) -> Tensor:
    """Return the indices of all slots that stay, ascending: sinks, the best of the middle, protected recent.

    Args:
        scores: `[B, K, S]` with S above `budget.total`; those of protected slots do not matter.

    Returns:
        `[B, K, budget.total]` int64.
    """
    n_slots = scores.shape[-1]
    middle = top_slots(scores[..., budget.n_sinks : n_slots - budget.n_recent], budget.n_mid) + budget.n_sinks
    ends = torch.arange(n_slots, device=scores.device)
    lead = scores.shape[:-1]
    sinks = ends[: budget.n_sinks].expand(*lead, budget.n_sinks)
    recent = ends[n_slots - budget.n_recent :].expand(*lead, budget.n_recent)
    return torch.cat([sinks, middle, recent], dim=-1)


def complement(index: Tensor, n_slots: int) -> Tensor:
    """Return the slots of each head that `index` `[B, K, n]` leaves out, ascending, `[B, K, n_slots - n]`."""
    taken = torch.zeros(*index.shape[:2], n_slots, dtype=torch.bool, device=index.device)
    taken.scatter_(2, index, True)
    return taken.to(torch.int8).sort(dim=-1, stable=True).indices[..., : n_slots - index.shape[-1]]
