"""SnapKV + pre-RoPE E-Means: most of the middle is selected by SnapKV, the rest becomes centroids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import PromptContext
from kvatlas.compression.policies.emeans import EMeans
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration(
    "snapkv_emeans", label="SnapKV + PreRoPE E-Means", source="public study", kind="clustering", order=8
)
@dataclass(frozen=True)
class SnapKVEMeans(EMeans):
    """Keep a share of `n_mid` exactly, by SnapKV's vote; cluster the rest before RoPE.

    Args:
        exact_share: share of the middle's budget that is exact.
    """

    pre_rope: ClassVar[bool] = True

    exact_share: float = 0.8

    def n_exact(self, n_mid: int) -> int:
        """Return the exact share of `n_mid`, rounded down."""
        return int(n_mid * self.exact_share)

    def exact_scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return SnapKV's scores `[B, K, S]`."""
        return self.selection_scores(layer)
