"""Headers of safetensors files are believed only where they agree with the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from kvatlas.lm.weight_headers import Tensor, read_tensors
from tests.support.fetching import failure

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
LIES: dict[str, Any] = {
    "overlap": {"a": F32, "b": F32 | {"data_offsets": [4, 12]}},
    "gap": {"a": F32, "b": F32 | {"data_offsets": [12, 20]}},
    "beyond the end": {"a": F32, "b": F32 | {"data_offsets": [8, 16]}},
    "before the start": {"a": F32 | {"data_offsets": [-8, 0]}},
    "backwards": {"a": F32 | {"data_offsets": [8, 0]}},
    "another dtype": {"a": F32 | {"dtype": "F16"}},
    "an unknown dtype": {"a": F32 | {"dtype": "F7"}},
    "a dtype that is a list": {"a": F32 | {"dtype": ["F32"]}},
    "another shape": {"a": F32 | {"shape": [3]}},
    "a negative shape": {"a": F32 | {"shape": [-1, -2]}},
    "a shape of fractions": {"a": F32 | {"shape": [2.0]}},
    "a shape that overflows": {"a": F32 | {"shape": [2**70, 0]}},
    "null": {"a": None},
    "no shape": {"a": {"dtype": "F32", "data_offsets": [0, 8]}},
    "three offsets": {"a": F32 | {"data_offsets": [0, 8, 8]}},
    "a list": [F32],
    "nothing for data": {},
    "not JSON": "not JSON",
    "a key twice": '{"a": %s, "a": %s}' % (json.dumps(F32), json.dumps(F32)),  # noqa: UP031
    "deep": '{"a": ' + "[" * 100_000,
}


def write(path: Path, header: Any, data: bytes, length: int | None = None) -> Path:
    text = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("how", LIES)
def test_a_header_that_lies_is_refused(tmp_path: Path, how: str) -> None:
    path = write(tmp_path / "w.safetensors", LIES[how], bytes(8))
    assert "is truncated or not a safetensors file; fetch it again" in failure(lambda: read_tensors(path, "m") and None)


@pytest.mark.parametrize("length", [0, 7, 10**6, 2**63, 2**64 - 1])
def test_a_header_of_another_length_is_refused_without_reading_it(tmp_path: Path, length: int) -> None:
    path = write(tmp_path / "w.safetensors", {"a": F32}, bytes(8), length)
    assert "is truncated or not a safetensors file" in failure(lambda: read_tensors(path, "m") and None)


def test_what_safetensors_writes_is_read(tmp_path: Path) -> None:
    weights = {"b": torch.ones(2, 3), "a": torch.ones(5, dtype=torch.bfloat16), "none": torch.ones(0, 4)}
    save_file(weights, tmp_path / "w.safetensors", metadata={"format": "pt"})
    assert read_tensors(tmp_path / "w.safetensors", "m") == {
        "b": Tensor("F32", (2, 3)),
        "a": Tensor("BF16", (5,)),
        "none": Tensor("F32", (0, 4)),
    }
