"""ExpectedAttention: slots that queries to come are expected to look at, weighted by their values. arXiv 2510.00636.

Queries are taken as normal, with the mean and covariance that those of the prompt had before RoPE, turned by the mean
rotation of the positions to come. In streams the statistics run over all queries so far. The covariance divides by the
number of queries. The first slots of a prompt stay and take no part in the softmax, as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.errors import KvatlasError
from kvatlas.lm.cache import CompressedLayer, Observation
from kvatlas.lm.query_statistics import COUNT, MEAN, N_SKIPPED, SCATTER
from kvatlas.lm.rope import Rotary


@PolicyRegistration("expected_attention", label="ExpectedAttention", source="arXiv 2510.00636", queries=True, order=20)
@dataclass(frozen=True)
class ExpectedAttention(EvictionPolicy):
    """The score is the attention expected of later queries, plus `epsilon`, times the value's norm.

    Softmax over slots of `k mu / sqrt(d) + k S k / (2 d)`, with mean and covariance of the prompt's un-rotated queries
    turned by the mean rotation of the next `n_future` positions; group mean. The first 4 tokens always stay and their
    queries do not count.

    Args:
        n_future: positions to come over which rotations are averaged. epsilon: added to the expected attention.
    """

    n_future: int = 512
    epsilon: float = 0.0

    def __post_init__(self) -> None:
        if self.n_future < 1:
            raise KvatlasError(f"n_future: {self.n_future} positions have no mean rotation; use at least 1")
        if self.epsilon < 0:
            raise KvatlasError(f"epsilon: {self.epsilon} would turn scores negative; use 0 or more")

    def observation(self) -> Observation:
        """Ask for the statistics of queries."""
        return Observation(queries=True)

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return the expected attention times the value's norm `[B, K, S]`, infinite for the first tokens.

        Raises KvatlasError when the prompt is too short for statistics.
        """
        keys, values = layer.store.read()
        mean, covariance = self._turned(layer.query_statistics, context.rotary)
        grouped = (keys.shape[0], keys.shape[1], -1)
        first = layer.positions() < N_SKIPPED
        heads = zip(
            mean.reshape(*grouped, *mean.shape[2:]).unbind(2),
            covariance.reshape(*grouped, *covariance.shape[2:]).unbind(2),
            strict=True,
        )
        expected = [_expected(keys.float(), mu, spread, first) for mu, spread in heads]
        scores: Tensor = (torch.stack(expected).mean(dim=0) + self.epsilon) * values.float().norm(dim=-1)
        return scores.masked_fill(first, torch.inf)

    def _turned(self, statistics: dict[str, Tensor], rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Return mean `[B, H, d]` and covariance `[B, H, d, d]` of the queries to come, times the attention scaling."""
        n_queries = int(statistics[COUNT][0])
        if n_queries < 1:
            raise KvatlasError(
                f"context: the first {N_SKIPPED} queries do not count, and no others came; use a longer one"
            )
        mean = statistics[MEAN]
        rotation = rotary.mean_rotation(N_SKIPPED + n_queries, self.n_future, mean.shape[-1], mean.device)
        turned: Tensor = rotation @ (statistics[SCATTER] / n_queries) @ rotation.T
        return mean @ rotation.T, turned


def _expected(keys: Tensor, mean: Tensor, covariance: Tensor, first: Tensor) -> Tensor:
    """Return the expected attention `[B, K, S]` of one query head of each group; 0 for the `first` slots."""
    logits: Tensor = (keys @ mean[..., None]).squeeze(-1) + ((keys @ covariance) * keys).sum(dim=-1) / 2
    return torch.softmax(logits.masked_fill(first, -torch.inf), dim=-1)
