"""Lloyd's algorithm against the same steps written out, one row and one slot at a time, bit by bit."""

from __future__ import annotations

import pytest
import torch

from kvatlas.compression import clustering
from kvatlas.compression.clustering import assign, segments, weighted_means

SHAPES = [(3, 5, 4, 5), (7, 33, 64, 8), (2, 200, 128, 7), (40, 20, 6, 19), (1, 900, 64, 300), (1, 1, 4, 1)]


def drawn(n_rows: int, n_slots: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys of which a sixth are equal, so that clusters run empty, and their weights."""
    generator = torch.Generator().manual_seed(n_slots)
    keys = torch.randn(n_rows, n_slots, width, generator=generator)
    keys[:, n_slots // 3 : n_slots // 2] = keys[:, n_slots // 3 : n_slots // 3 + 1]
    return keys, torch.rand(n_rows, n_slots, generator=generator) + 1e-3


def filled(cluster: torch.Tensor, distance: torch.Tensor, n_clusters: int) -> torch.Tensor:
    """Give the empty clusters of one row, in order, the farthest slots that are not alone."""
    for number in range(n_clusters):
        if (cluster == number).any():
            continue
        candidates = [slot for slot in range(len(cluster)) if (cluster == cluster[slot]).sum() > 1]
        taken = max(candidates, key=lambda slot: (float(distance[slot]), -slot))
        cluster[taken] = number
        distance[taken] = -1.0
    return cluster


def written_out(keys: torch.Tensor, weights: torch.Tensor, n_clusters: int, n_iter: int) -> torch.Tensor:
    cluster = segments(keys.shape[1], n_clusters, keys.device).repeat(len(keys), 1)
    for _ in range(n_iter):
        centroids = weighted_means(keys, weights, cluster, n_clusters)
        nearest = torch.cdist(keys, centroids, compute_mode="use_mm_for_euclid_dist").min(dim=-1)
        rows = zip(nearest.indices, nearest.values, strict=True)
        cluster = torch.stack([filled(row.clone(), distance.clone(), n_clusters) for row, distance in rows])
    return cluster


@pytest.mark.parametrize("n_iter", [0, 1, 5])
@pytest.mark.parametrize(("n_rows", "n_slots", "width", "n_clusters"), SHAPES)
def test_clusters_are_those_of_lloyds_steps_written_out(n_rows, n_slots, width, n_clusters, n_iter):
    keys, weights = drawn(n_rows, n_slots, width)
    cluster = assign(keys, weights, n_clusters, n_iter)
    expected = written_out(keys, weights, n_clusters, n_iter)
    assert torch.equal(cluster, expected)
    assert torch.equal(
        weighted_means(keys, weights, cluster, n_clusters), weighted_means(keys, weights, expected, n_clusters)
    )


def test_rows_do_not_depend_on_which_are_clustered_together(monkeypatch):
    keys, weights = drawn(30, 60, 16)
    together = assign(keys, weights, 12, 8)
    monkeypatch.setattr(clustering, "_CPU_DISTANCES", 1)
    assert torch.equal(assign(keys, weights, 12, 8), together)


def test_no_distance_is_formed_of_a_row_in_which_nothing_moves_any_more(monkeypatch):
    """Rows of two far groups settle at once; a row of noise goes on, alone, and the result is that of all steps."""
    keys, weights = drawn(4, 60, 8)
    keys[:3] = torch.arange(60)[:, None].ge(30) * 100.0 + 0.01 * keys[:3]
    formed: list[int] = []
    product = torch.bmm

    def counted(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        formed.append(len(left))
        return product(left, right, out=out)

    monkeypatch.setattr(torch, "bmm", counted)
    cluster = assign(keys, weights, 2, 200)
    assert formed[0] == 4
    assert formed[1] == 1
    assert len(formed) < 200
    assert torch.equal(cluster, written_out(keys, weights, 2, len(formed) + 5))
