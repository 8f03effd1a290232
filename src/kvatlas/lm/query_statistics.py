"""Running mean and scatter of a layer's queries before RoPE, what ExpectedAttention reads. arXiv 2510.00636.

Queries come from the attention tap after RoPE and are un-rotated (exact, see rope.py), so no model code is touched. They
are multiplied by the layer's attention scaling, so that a product with a key is a logit. The first `N_SKIPPED` queries
of a prompt, outliers in most models, do not count. Blocks are joined by the update of Chan, Golub and LeVeque, which
loses no digits where the mean is large against the spread (query biases). Knows no cache and no policy.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvatlas.lm.rope import Rotary

N_SKIPPED = 4
COUNT, MEAN, SCATTER = QUERY_STATISTICS = ("query_count", "query_mean", "query_scatter")
"""Names of the statistics: `[B]` queries that count, `[B, H, d]` their mean, `[B, H, d, d]` their scatter."""


def add_queries(
    statistics: dict[str, Tensor], query: Tensor, scaling: float, first: int, rotary: Rotary
) -> dict[str, Tensor]:
    """Return the statistics of the queries so far and of new ones.

    Args:
        statistics: by the names `QUERY_STATISTICS`; empty before the first block. They are not written.
        query: `[B, H, Q, d]` post-RoPE, at positions `first`, `first + 1`, ... scaling: factor on the logits.

    Returns:
        All three, float32: the scatter is the sum of outer products around the mean. The count may be 0.

    Raises KvatlasError where the model's rotation cannot be undone (`Rotary.refusal`).
    """
    skipped = min(max(N_SKIPPED - first, 0), query.shape[2])
    positions = torch.arange(first + skipped, first + query.shape[2], dtype=torch.float32, device=query.device)
    scaled = rotary.move(query[:, :, skipped:].float(), positions, 0.0) * scaling
    old = statistics or _nothing(query)
    fresh = scaled.shape[2]
    if not fresh:
        return old
    mean = scaled.mean(dim=2)
    centred = scaled - mean[:, :, None]
    count = old[COUNT] + fresh
    weight = (fresh / count)[:, None, None]
    step = mean - old[MEAN]
    between = step[..., :, None] * step[..., None, :] * (old[COUNT][:, None, None] * weight)[..., None]
    within = torch.einsum("bhqi,bhqj->bhij", centred, centred)
    return {COUNT: count, MEAN: old[MEAN] + step * weight, SCATTER: old[SCATTER] + within + between}


def _nothing(query: Tensor) -> dict[str, Tensor]:
    batch, heads, _, width = query.shape
    shapes = ((batch,), (batch, heads, width), (batch, heads, width, width))
    return {
        name: torch.zeros(shape, dtype=torch.float32, device=query.device)
        for name, shape in zip(QUERY_STATISTICS, shapes, strict=True)
    }
