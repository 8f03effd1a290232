"""Value norm: slots with long values stay."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("value_norm", label="Value norm", source="example")
@dataclass(frozen=True)
class ValueNorm(EvictionPolicy):
    """The score is a norm of the value, in fp32.

    Args:
        p: exponent of the norm.
    """

    p: float = 2.0

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return value norms `[B, K, S]`; the highest stay."""
        _, values = layer.store.read()
        norms: Tensor = values.float().norm(p=self.p, dim=-1)
        return norms
