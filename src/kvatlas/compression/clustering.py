"""Attention-weighted E-Means: Lloyd's algorithm on the keys of one head, with weighted barycentres.

The public study that proposes it leaves the E-step open; the choices made here are deterministic. Initial centroids are
the weighted means of equally long contiguous segments; an empty cluster takes the slot farthest from its own centroid.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]

# Rows of a batch are clustered together up to this many distances at a time: few enough for the caches of a CPU (fp32:
# 4 MB), enough to fill a GPU (256 MB).
_CPU_DISTANCES, _GPU_DISTANCES = 1 << 20, 1 << 26


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
    return _barycentres(_weighted(rows, weights), cluster, n_clusters)


def _weighted(rows: Tensor, weights: Tensor) -> Tensor:
    """Return the rows times their weights with the weights behind them, `[N, M, c + 1]` float32."""
    weight = weights.float()[..., None]
    return torch.cat([rows.float() * weight, weight], dim=-1)


def _barycentres(weighted: Tensor, cluster: Tensor, n_clusters: int) -> Tensor:
    sums = cluster_sums(weighted, cluster, n_clusters)
    return sums[..., :-1] / sums[..., -1:]


def assign(keys: Tensor, weights: Tensor, n_clusters: int, n_iter: int = 5) -> Tensor:
    """Cluster the slots of each row and return the cluster of each slot, `[N, M]` int64; no cluster is empty.

    Args:
        keys: `[N, M, d]`. weights: `[N, M]` above 0. n_clusters: at most M. n_iter: Lloyd steps.
    """
    n_slots = keys.shape[1]
    together = _CPU_DISTANCES if keys.device.type == "cpu" else _GPU_DISTANCES
    chunk = max(1, together // (n_slots * n_clusters))
    pairs = zip(keys.detach().float().split(chunk), weights.detach().split(chunk), strict=True)
    return torch.cat([_lloyd(rows, weight, n_clusters, n_iter) for rows, weight in pairs])


def _lloyd(rows: Tensor, weights: Tensor, n_clusters: int, n_iter: int) -> Tensor:
    """Cluster rows that fit together; a row of which a step moved no slot takes part in no further step."""
    n_rows, n_slots = rows.shape[:2]
    cluster = segments(n_slots, n_clusters, rows.device).repeat(n_rows, 1)
    live, weighted, left = torch.arange(n_rows, device=rows.device), _weighted(rows, weights), _left_factor(rows)
    room = rows.new_empty(n_rows, n_slots, n_clusters)
    for _ in range(n_iter):
        before = cluster[live]
        squared = torch.bmm(left, _right_factor(_barycentres(weighted, before, n_clusters)), out=room[: len(live)])
        after = fill_empty(*_nearest(squared.clamp_min_(0).sqrt_()), n_clusters)
        cluster[live] = after
        moved = (after != before).any(dim=1)
        if not bool(moved.all()):
            live, weighted, left = live[moved], weighted[moved], left[moved]
        if not len(live):
            break
    return cluster


def _left_factor(rows: Tensor) -> Tensor:
    """Return what `_right_factor` is multiplied with for squared distances, `[N, M, d + 2]`.

    |x - c|^2 is the product of (-2x, |x|^2, 1) and (c, 1, |c|^2), as in `torch.cdist`; the rows' part never changes.
    """
    norm = rows.pow(2).sum(dim=-1, keepdim=True)
    return torch.cat([rows.mul(-2), norm, torch.ones_like(norm)], dim=-1)


def _right_factor(centroids: Tensor) -> Tensor:
    """Return the centroids' part of the squared distances, `[N, d + 2, k]`."""
    norm = centroids.pow(2).sum(dim=-1, keepdim=True)
    return torch.cat([centroids, torch.ones_like(norm), norm], dim=-1).mT


def _nearest(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first cluster at the least of the distances `[N, M, k]` of each slot, and that distance, `[N, M]`."""
    if distance.device.type != "cpu":
        values, indices = distance.min(dim=-1)
        return indices, values
    # NumPy compares several numbers at a time, PyTorch one by one.
    first = torch.from_numpy(distance.numpy().argmin(axis=-1))
    return first, distance.gather(2, first[..., None])[..., 0]


def fill_empty(cluster: Tensor, distance: Tensor, n_clusters: int) -> Tensor:
    """Give each empty cluster the slot that is farthest from its centroid, never the only slot of another cluster.

    Args:
        cluster: `[N, M]` int64. distance: `[N, M]` of each slot to its own centroid.
    """
    n_rows = cluster.shape[0]
    offset = torch.arange(n_rows, device=cluster.device)[:, None] * n_clusters
    sizes = (cluster + offset).flatten().bincount(minlength=n_rows * n_clusters).view(n_rows, n_clusters)
    lacking = (sizes == 0).any(dim=1).nonzero().flatten()
    if not len(lacking):
        return cluster
    farthest = distance[lacking].sort(dim=1, descending=True, stable=True).indices
    # Few slots of a row are looked at, so the rows are not turned into lists.
    of_rows = [tensor.cpu().numpy() for tensor in (lacking, sizes[lacking], cluster[lacking], farthest)]
    moves = [
        (row, slot, number)
        for row, counts, owners, order in zip(*of_rows, strict=True)
        for slot, number in _moves(counts, owners, order)
    ]
    rows, slots, numbers = torch.tensor(np.array(moves), device=cluster.device).unbind(dim=1)
    return cluster.index_put((rows, slots), numbers)


def _moves(counts: IntArray, owners: IntArray, farthest: IntArray) -> Iterator[tuple[int, int]]:
    """Yield (slot, empty cluster that it moves to) of one row; `counts` are taken down with each move."""
    empty: list[int] = np.flatnonzero(counts == 0).tolist()
    for slot in farthest:
        if not empty:
            return
        if counts[owners[slot]] > 1:
            counts[owners[slot]] -= 1
            yield int(slot), empty.pop(0)
