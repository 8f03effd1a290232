"""L2Compress: keys with a small L2 norm stay. arXiv 2406.11430.

It reads no attention. RoPE is a rotation and keeps norms, so stored keys can be scored as they are. The paper leaves
layers 0 and 1 uncompressed; here that is the budget's `skip_layers`, stated in the configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("l2norm", label="L2Compress", source="arXiv 2406.11430", order=9)
@dataclass(frozen=True)
class L2Norm(EvictionPolicy):
    """The score is minus the key's L2 norm, which RoPE leaves as it is; uncompressed layers are `skip_layers`."""

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return minus the norm of each key `[B, K, S]`, in fp32: in bf16 hundreds of norms are equal."""
        keys, _ = layer.store.read()
        return -keys.float().norm(dim=-1)  # type: ignore[no-any-return]
