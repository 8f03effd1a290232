"""Random eviction: the control that every score has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.base import EvictionPolicy, PromptContext
from kvatlas.lm.cache import CompressedLayer


@PolicyRegistration("random", label="Random", source="control", order=17)
@dataclass(frozen=True)
class Random(EvictionPolicy):
    """The score is a uniform draw per (seed, prompt, layer, head, step), equal on every device."""

    seed: int = 0

    def scores(self, layer: CompressedLayer, context: PromptContext) -> Tensor:
        """Return uniform scores `[B, K, S]`."""
        like = layer.positions()
        draws = [
            np.random.default_rng([self.seed, seed, context.layer_idx, context.step]).random(
                (like.shape[1], layer.n_slots), dtype=np.float32
            )
            for seed in context.seeds
        ]
        return torch.from_numpy(np.stack(draws)).to(like.device)
