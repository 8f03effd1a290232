"""Rotary position embeddings as an exact, invertible rotation of stored keys.

Rotating by R(p) and by R(-p) uses the same fp32 angles as the model does, so that a key can be taken back to position
zero, or moved to another (also fractional) position, after it was cached. Source: RoFormer, arXiv 2104.09864.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kvatlas.errors import KvatlasError

STATIC_TYPES = frozenset({"default", "linear", "llama3", "yarn"})


@dataclass(frozen=True)
class Rotary:
    """The rotation of one model; `inverse_frequencies` is `[r / 2]` for the first r channels of a head.

    `refusal` says why keys of the model cannot be rotated, where they cannot.
    """

    inverse_frequencies: Tensor
    refusal: str = ""

    @classmethod
    def of(cls, model: nn.Module) -> Rotary:
        """Read the frequencies from a model's rotary module.

        Raises KvatlasError where there is none, or where they change with the length of the prompt.
        """
        for module in model.modules():
            frequencies = getattr(module, "inv_freq", None)
            if isinstance(frequencies, Tensor):
                kind = getattr(module, "rope_type", "default")
                if kind not in STATIC_TYPES:
                    raise KvatlasError(
                        f"model: rope_type '{kind}' changes with the prompt's length and cannot be inverted; "
                        f"use a model with one of {', '.join(sorted(STATIC_TYPES))}"
                    )
                return cls(frequencies.detach().float())
        raise KvatlasError("model: it has no rotary embedding; only RoPE models are supported")

    def move(self, keys: Tensor, start: Tensor | float, end: Tensor | float) -> Tensor:
        """Rotate keys from position `start` to position `end`.

        Args:
            keys: `[B, K, S, d]`. start, end: positions `[B, K, S]` or one number; they may be fractional.

        Returns:
            Keys of the same shape and dtype. Angles are formed in fp32 as the model forms them, subtracted in fp64.

        Raises KvatlasError where the model rotates in another way, or not at all (`refusal`).
        """
        if self.refusal:
            raise KvatlasError(self.refusal)
        angles = (self._angles(end, keys) - self._angles(start, keys)).to(torch.float64)
        cos, sin = angles.cos().to(torch.float32), angles.sin().to(torch.float32)
        half = self.inverse_frequencies.shape[0]
        low, high, unrotated = keys.float().split([half, half, keys.shape[-1] - 2 * half], dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin, unrotated], dim=-1).to(keys.dtype)

    def mean_rotation(self, first: int, n_positions: int, width: int, device: torch.device) -> Tensor:
        """Return the mean of the rotations to `n_positions` positions from `first` on, `[d, d]` fp32, for `R q`.

        Raises KvatlasError where the model rotates in another way, or not at all (`refusal`).
        """
        if self.refusal:
            raise KvatlasError(self.refusal)
        positions = torch.arange(first, first + n_positions, dtype=torch.float32, device=device)
        angles = (positions[:, None] * self.inverse_frequencies.to(device)).to(torch.float64)
        half = self.inverse_frequencies.shape[0]
        cos, sin = angles.cos().mean(dim=0).float(), angles.sin().mean(dim=0).float()
        rotation = torch.eye(width, device=device)
        low = torch.arange(half, device=device)
        rotation[low, low] = rotation[low + half, low + half] = cos
        rotation[low, low + half], rotation[low + half, low] = -sin, sin
        return rotation

    def _angles(self, positions: Tensor | float, keys: Tensor) -> Tensor:
        at = torch.as_tensor(positions, dtype=torch.float32, device=keys.device)
        return (at[..., None] * self.inverse_frequencies.to(keys.device)).to(torch.float64)


def inversion_error(rotary: Rotary, keys: Tensor, positions: Tensor) -> float:
    """Return the largest relative error of R(p) R(-p) k over all keys `[B, K, S, d]` at `positions` `[B, K, S]`."""
    restored = rotary.move(rotary.move(keys, positions, 0.0), 0.0, positions)
    norms = keys.float().norm(dim=-1).clamp_min(1e-12)
    return float(((restored.float() - keys.float()).norm(dim=-1) / norms).max())
