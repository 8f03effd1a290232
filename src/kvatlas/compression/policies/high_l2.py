"""High-L2: keys with a large L2 norm stay. The ablation of L2Compress, with its order reversed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("high_l2", label="High-L2", source="ablation of l2norm", order=18)
@dataclass(frozen=True)
class HighL2(EvictionPolicy):
    """The score is the key's L2 norm."""

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return the norm of each key `[B, K, S]`, in fp32."""
        keys, _ = layer.store.read()
        return keys.float().norm(dim=-1)  # type: ignore[no-any-return]
