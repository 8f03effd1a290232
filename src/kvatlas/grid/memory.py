"""Estimates of the memory of cells, and the batch size that fits a stated memory.

Deliberately generous: a job that declares too much waits, one that declares too little is killed. Knows a model only by
the shape that the catalog gives; imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvatlas.errors import KvatlasError

# Python with torch and transformers loaded.
PYTHON_MB = 1500
# Vocabularies of the supported models are smaller.
VOCABULARY = 150_000
# Log-probabilities of a teacher-forced block: ours, the reference's, their difference and a temporary one, fp32.
_LOGIT_COPIES = 4
# A fork shares the prompt's slots until something is evicted or appended; then there are two.
_CACHE_COPIES = 2
# Room behind the slots of a cache that was appended to, as a share of them (`lm.growing`).
ROOM = 1 / 8

UNKNOWN_SHAPE = {"layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 1}


@dataclass(frozen=True)
class Footprint:
    """What a batch of prompts takes: a part that is always there, and a part per prompt, both in MB."""

    fixed: float
    per_prompt: float

    def of(self, prompts: int) -> int:
        """Return the memory of a batch, in MB."""
        return int(self.fixed + prompts * self.per_prompt)

    def batch_within(self, limit: int, name: str) -> int:
        """Return how many prompts fit into `limit` MB. Raises KvatlasError that names the cell when not one does."""
        fitting = int((limit - self.fixed) // self.per_prompt)
        if fitting < 1:
            raise KvatlasError(
                f"memory_mb: {limit} MB cannot hold one prompt of cell {name}; it takes about {self.of(1) + 1} MB"
            )
        return fitting


def footprint(
    shape: Mapping[str, int], number_bytes: int, context: int, new_tokens: int, *, queries: bool = False
) -> Footprint:
    """Estimate a cell of a model of `shape`: weights in numbers of `number_bytes`, prompts of `context` tokens.

    `queries`: the statistics of queries are in memory too.
    """
    caches = _CACHE_COPIES * (1 + ROOM) * context * token_bytes(shape, number_bytes)
    logits = _LOGIT_COPIES * 4 * new_tokens * VOCABULARY
    scatter = query_bytes(shape) if queries else 0
    return Footprint(PYTHON_MB + weights(shape) * number_bytes / 2**20, (caches + logits + scatter) / 2**20)


def weights(shape: Mapping[str, int]) -> int:
    """Estimate the numbers in the weights of a model of `shape`."""
    hidden = shape["heads"] * shape["head_dim"]
    return (12 * shape["layers"] * hidden + VOCABULARY) * hidden


def query_bytes(shape: Mapping[str, int]) -> int:
    """Return the bytes of the mean and scatter of a prompt's queries, fp32 (`lm.query_statistics`)."""
    return 4 * shape["layers"] * (1 + shape["heads"] * shape["head_dim"] * (shape["head_dim"] + 1))


def token_bytes(shape: Mapping[str, int], number_bytes: int) -> int:
    """Return the bytes of the keys and values of one token."""
    return 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * number_bytes
