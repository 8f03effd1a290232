"""Attention-weighted E-Means: Lloyd's algorithm on the keys of one head, with weighted barycentres.

The public study that proposes it leaves the E-step open; the choices made here are deterministic. Initial centroids are
the weighted means of equally long contiguous segments; an empty cluster takes the slot farthest from its own centroid.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Rows of a batch are clustered together up to this many distances at a time (fp32: 256 MB).
MAX_DISTANCES = 1 << 26


def segments(n_slots: int, n_clusters: int, device: torch.device) -> Tensor:
    """Return the initial cluster of each slot, `[n_slots]`: contiguous segments of equal length, up to one slot."""
    return torch.arange(n_slots, device=device) * n_clusters // n_slots


def cluster_sums(rows: Tensor, cluster: Tensor, n_clusters: int) -> Tensor:
    """Return the sum of `rows` `[N, M, c]` over the members of each cluster `[N, M]`, `[N, k, c]`."""
    n_rows = rows.shape[0]
    offset = torch.arange(n_rows, device=rows.device)[:, None] * n_clusters
    sums = rows.new_zeros(n_rows * n_clusters, rows.shape[-1])
    sums.index_add_(0, (cluster + offset).flatten(), rows.flatten(0, 1))
    return sums.view(n_rows, n_clusters, rows.shape[-1])


def weighted_means(rows: Tensor, weights: Tensor, cluster: Tensor, n_clusters: int) -> Tensor:
    """Return the barycentre of each cluster, `[N, k, c]` float32.

    Args:
        rows: `[N, M, c]`. weights: `[N, M]` above 0. cluster: `[N, M]` int64, none empty.
    """
    weight = weights.float()[..., None]
    sums = cluster_sums(torch.cat([rows.float() * weight, weight], dim=-1), cluster, n_clusters)
    return sums[..., :-1] / sums[..., -1:]


def assign(keys: Tensor, weights: Tensor, n_clusters: int, n_iter: int = 5) -> Tensor:
    """Cluster the slots of each row and return the cluster of each slot, `[N, M]` int64; no cluster is empty.

    Args:
        keys: `[N, M, d]`. weights: `[N, M]` above 0. n_clusters: at most M. n_iter: Lloyd steps.
    """
    n_slots = keys.shape[1]
    step = max(1, MAX_DISTANCES // (n_slots * n_clusters))
    clusters = []
    for rows, weight in zip(keys.float().split(step), weights.split(step), strict=True):
        cluster = segments(n_slots, n_clusters, keys.device).expand(len(rows), n_slots)
        for _ in range(n_iter):
            centroids = weighted_means(rows, weight, cluster, n_clusters)
            nearest = torch.cdist(rows, centroids, compute_mode="use_mm_for_euclid_dist").min(dim=-1)
            cluster = fill_empty(nearest.indices, nearest.values, n_clusters)
        clusters.append(cluster)
    return torch.cat(clusters)


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
