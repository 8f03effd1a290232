"""Any change to a model folder ends in a model or in one line, within bounded time; KVATLAS_EXAMPLES tries more of them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvatlas.errors import KvatlasError
from kvatlas.lm.folders import check_folder
from kvatlas.lm.loading import LanguageModel
from tests.support.tiny_models import make_model_dir

EXAMPLES = int(os.environ.get("KVATLAS_EXAMPLES", "60"))
FUZZ = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.sampled_from([2**31, 10**12, "full_attention", "qwen2", "default", "gelu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("whole") / "tiny", layers=1, heads=2, kv_heads=1, head_dim=4)


def copy(whole: Path) -> Path:
    folder = whole.parent / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    return Path(shutil.copytree(whole, folder))


def loads_or_says_why(folder: Path) -> None:
    """A model that loads computes; one that does not is refused in one line that names its folder."""
    try:
        model = LanguageModel.load(folder, "cpu", "fp32")
    except KvatlasError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message
    assert message.startswith("model") or not message
    if message:
        return
    with torch.no_grad():
        hidden = model.forward(torch.tensor([[1, 2]]), model.new_cache())
        assert model.log_probs(hidden).shape[:2] == (1, 2)


@FUZZ
@given(
    name=st.sampled_from(["config.json", "config.json", "generation_config.json", "tokenizer_config.json"]),
    number=st.integers(0, 60),
    value=VALUES,
)
def test_any_value_in_a_configuration(whole: Path, name: str, number: int, value: Any) -> None:
    folder = copy(whole)
    content = json.loads((folder / name).read_text())
    content[list(content)[number % len(content)]] = value
    (folder / name).write_text(json.dumps(content))
    loads_or_says_why(folder)


@FUZZ
@given(part=st.sampled_from(["dtype", "shape", "data_offsets"]), number=st.integers(0, 20), value=VALUES)
def test_any_value_in_a_header(whole: Path, part: str, number: int, value: Any) -> None:
    folder = copy(whole)
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    names = [name for name in header if name != "__metadata__"]
    before = header[names[number % len(names)]][part]
    header[names[number % len(names)]][part] = value
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
    if value == before:
        return
    with pytest.raises(KvatlasError):
        check_folder(folder, "model")


@FUZZ
@given(
    name=st.sampled_from(["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]),
    at=st.integers(0, 10**6),
    data=st.binary(max_size=4),
)
def test_any_bytes_in_a_file(whole: Path, name: str, at: int, data: bytes) -> None:
    folder = copy(whole)
    raw = (folder / name).read_bytes()
    at %= len(raw)
    (folder / name).write_bytes(raw[:at] + data + raw[at + 1 :])
    loads_or_says_why(folder)
