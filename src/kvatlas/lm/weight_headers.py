"""The headers of safetensors files, believed only where they agree with the file: what tensors it holds.

Reads the JSON header and the file's length, never a tensor; knows nothing of torch, models or where a file came from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError

_HEADER_LIMIT = 100_000_000  # bytes; the format's own limit for the JSON header
_BITS = (
    {"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E5M2FNUZ": 8, "F8_E4M3FNUZ": 8}
    | {"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64}
    | {"C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
)


@dataclass(frozen=True)
class Tensor:
    """What a header says of one tensor: its dtype as the format spells it, and its shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return prod(self.shape)


def read_tensors(path: Path, label: str) -> dict[str, Tensor]:
    """The tensors of the safetensors file at `path` by name.

    Raises KvatlasError, starting with `label`, unless the header is valid JSON without duplicates, every tensor has the
    bytes of its dtype and shape, and the tensors fill the file without a gap or an overlap.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            text = stream.read(length) if length <= min(size - 8, _HEADER_LIMIT) else b""
    except OSError as error:
        raise KvatlasError(f"{label}: {path} cannot be read ({error.strerror})") from error
    try:
        return _tensors(text, size - 8 - length)
    except (ValueError, RecursionError) as error:
        raise KvatlasError(
            f"{label}: {path} ({size} bytes) is truncated or not a safetensors file; fetch it again"
        ) from error


def _tensors(text: bytes, data_bytes: int) -> dict[str, Tensor]:
    """Parse a header in front of `data_bytes` bytes of data; raises ValueError where it lies."""
    header = json.loads(text, object_pairs_hook=_without_duplicates)
    if not isinstance(header, dict):
        raise ValueError("the header is not an object")
    header.pop("__metadata__", None)
    spans, tensors = [], {}
    for name, entry in header.items():
        tensors[name], span = _tensor(entry)
        spans.append(span)
    end = 0
    for begin, stop in sorted(spans):
        if begin != end:
            raise ValueError("a gap or an overlap")
        end = stop
    if end != data_bytes:
        raise ValueError("another length")
    return tensors


def _tensor(entry: Any) -> tuple[Tensor, tuple[int, int]]:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError("not a tensor")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise ValueError("an unknown dtype")
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError("not a shape or not offsets")
    begin, end = offsets
    if (end - begin) * 8 != prod(shape) * _BITS[dtype]:
        raise ValueError("another size than its dtype and shape have")
    return Tensor(dtype, tuple(shape)), (begin, end)


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 2**63 for item in value)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key twice")
    return result
