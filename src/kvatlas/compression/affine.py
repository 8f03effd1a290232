"""Asymmetric rounding to a few bits, and the packing of codes into bytes; plain functions of tensors.

x is coded as round((x - zero) / scale) with scale = (max - min) / (2^b - 1) and zero = min, one pair of fp16 numbers
per group. Codes are formed against the rounded scale and zero, so that what is stored is all that decoding needs.
Decoding is one product and one sum in fp32, as two operations: fused, they would round differently.
"""

from __future__ import annotations

import torch
from torch import Tensor

HALF_LIMIT = torch.finfo(torch.float16).max


def affine_encode(values: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Code `values` with one scale and zero over all of dimension `dim`.

    Returns:
        Codes (uint8, the shape of `values`), scale and zero (fp16, `dim` has size 1).
    """
    values = values.float()
    low, high = values.aminmax(dim=dim, keepdim=True)
    levels = 2**bits - 1
    scale = ((high - low) / levels).clamp(max=HALF_LIMIT).half()
    zero = low.clamp(-HALF_LIMIT, HALF_LIMIT).half()
    step = scale.float()
    # A group of equal values has no step; all its codes are zero, and zero is the value.
    codes = ((values - zero.float()) / step.masked_fill(step == 0, 1.0)).round().clamp(0, levels)
    return codes.to(torch.uint8), scale, zero


def affine_decode(codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Return codes * scale + zero in fp32."""
    decoded: Tensor = codes.float().mul_(scale.float())
    return decoded.add_(zero.float())


def pack(codes: Tensor, bits: int) -> Tensor:
    """Put `8 / bits` codes of the last dimension into each byte: `[..., d]` to `[..., d * bits / 8]`, uint8.

    A byte holds channels i, i + d * bits / 8, ..., so that unpacking is a concatenation.
    """
    per_byte = 8 // bits
    chunks = codes.unflatten(-1, (per_byte, codes.shape[-1] // per_byte)).unbind(-2)
    packed = chunks[0]
    for index, chunk in enumerate(chunks[1:], start=1):
        packed = packed | (chunk << (bits * index))
    return packed.contiguous()  # type: ignore[no-any-return]


def unpack(packed: Tensor, bits: int) -> Tensor:
    """Undo `pack`."""
    if bits == 8:
        return packed
    mask = 2**bits - 1
    return torch.cat([(packed >> shift) & mask for shift in range(0, 8, bits)], dim=-1)
