"""Attention-weighted E-Means: Lloyd's algorithm on the keys of one head, with weighted barycentres.

The public study that proposes it leaves the E-step open; the choices made here are deterministic. Initial centroids are
the weighted means of equally long contiguous segments; an empty cluster takes the slot farthest from its own centroid.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows of a batch are clustered together up to this many distances at a time (fp32: 256 MB).
MAX_DISTANCES = 1 << 26


def segments(n_slots: int, n_clusters: int, device: torch.device) -> Tensor:
    """Return the initial cluster of each slot, `[n_slots]`: contiguous segments of equal length, up to one slot."""
    return torch.arange(n_slots, device=device) * n_clusters // n_slots


def weighted_means(rows: Tensor, weights: Tensor, membership: Tensor) -> Tensor:
    """Return the barycentre of each cluster, `[N, k, c]`.

    Args:
        rows: `[N, M, c]`. weights: `[N, M]` above 0. membership: `[N, M, k]` one-hot.
    """
    weighted = membership * weights[..., None]
    return weighted.transpose(1, 2) @ rows / weighted.sum(dim=1)[..., None].clamp_min(1e-30)


def assign(keys: Tensor, weights: Tensor, n_clusters: int, n_iter: int = 5) -> Tensor:
    """Cluster the slots of each row and return the cluster of each slot, `[N, M]` int64; no cluster is empty.

    Args:
        keys: `[N, M, d]`. weights: `[N, M]` above 0. n_clusters: at most M. n_iter: Lloyd steps.
    """
    n_rows, n_slots, _ = keys.shape
    parts = []
    for low, high in _row_chunks(n_rows, n_slots * n_clusters):
        part, weight = keys[low:high].float(), weights[low:high].float()
        cluster = segments(n_slots, n_clusters, keys.device).expand(high - low, n_slots)
        for _ in range(n_iter):
            centroids = weighted_means(part, weight, _one_hot(cluster, n_clusters))
            distances = torch.cdist(part, centroids, compute_mode="use_mm_for_euclid_dist")
            nearest = distances.min(dim=-1)
            cluster = fill_empty(nearest.indices, nearest.values, n_clusters)
        parts.append(cluster)
    return torch.cat(parts)


def fill_empty(cluster: Tensor, distance: Tensor, n_clusters: int) -> Tensor:
    """Give each empty cluster the slot that is farthest from its centroid, never the only slot of another cluster.

    Args:
        cluster: `[N, M]` int64. distance: `[N, M]` of each slot to its own centroid.
    """
    cluster = cluster.clone()
    for row in range(cluster.shape[0]):
        sizes = torch.bincount(cluster[row], minlength=n_clusters)
        empty = (sizes == 0).nonzero().flatten().tolist()
        if not empty:
            continue
        counts = sizes.tolist()
        for slot in distance[row].sort(descending=True, stable=True).indices.tolist():
            owner = int(cluster[row, slot])
            if counts[owner] > 1:
                counts[owner] -= 1
                cluster[row, slot] = empty.pop(0)
                if not empty:
                    break
    return cluster


def _one_hot(cluster: Tensor, n_clusters: int) -> Tensor:
    return F.one_hot(cluster, n_clusters).to(torch.float32)


def barycentres(cluster: Tensor, n_clusters: int, weights: Tensor, *rows: Tensor) -> tuple[Tensor, ...]:
    """Return the weighted mean of each cluster for every tensor of `rows`, `[N, M, c]` each -> `[N, k, c]` each."""
    results: list[list[Tensor]] = [[] for _ in rows]
    for low, high in _row_chunks(cluster.shape[0], cluster.shape[1] * n_clusters):
        membership = _one_hot(cluster[low:high], n_clusters)
        for result, row in zip(results, rows, strict=True):
            result.append(weighted_means(row[low:high].float(), weights[low:high].float(), membership))
    return tuple(torch.cat(result) for result in results)


def member_sums(cluster: Tensor, n_clusters: int, column: Tensor) -> Tensor:
    """Return the sum of `column` `[N, M]` over the members of each cluster, `[N, k]`."""
    membership = _one_hot(cluster, n_clusters)
    return (membership.transpose(1, 2) @ column.float()[..., None])[..., 0]


def _row_chunks(n_rows: int, size: int) -> Iterator[tuple[int, int]]:
    step = max(1, MAX_DISTANCES // max(1, size))
    for low in range(0, n_rows, step):
        yield low, min(low + step, n_rows)
