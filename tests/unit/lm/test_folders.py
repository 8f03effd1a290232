"""What a model folder must have, and the reason given when it has not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from kvatlas.lm.sources import fetch_model
from tests.support.fetching import (
    SHAPE,
    Entry,
    refused,
)


def break_folder(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    match how:
        case "no folder":
            shutil.rmtree(folder)
        case "no config":
            (folder / "config.json").unlink()
        case "broken config":
            (folder / "config.json").write_text("{")
        case "no tokenizer":
            (folder / "tokenizer.json").unlink()
        case "no weights":
            weights.unlink()
        case "only pickles":
            weights.rename(folder / "pytorch_model.bin")
        case "truncated":
            weights.write_bytes(weights.read_bytes()[:-100])
        case "truncated header":
            weights.write_bytes(weights.read_bytes()[:20])
        case "git lfs pointer":
            weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 10\n")
        case "missing shard":
            shard = "model-00002-of-00002.safetensors"
            index = {"weight_map": {"a": "model.safetensors", "b": shard}}
            (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no folder", ".path: {} is not a folder"),
        ("no config", ".path: {} has no config.json"),
        ("broken config", ".path: {}/config.json is not valid JSON"),
        ("no tokenizer", ".path: {} has no tokenizer"),
        ("no weights", ".path: {} has no weights (*.safetensors)"),
        (
            "only pickles",
            "only pickle weights (pytorch_model.bin); a pickle can run code, so they are refused",
        ),
        ("truncated", "is truncated or not a safetensors file; fetch it again"),
        ("truncated header", "is truncated or not a safetensors file; fetch it again"),
        ("git lfs pointer", "is truncated or not a safetensors file; fetch it again"),
        ("missing shard", ".path: {} lacks model-00002-of-00002.safetensors"),
    ],
)
def test_a_folder_that_cannot_be_a_model_is_refused_with_the_reason(
    path_entry: Entry, tmp_path: Path, how: str, message: str
) -> None:
    break_folder(Path(path_entry["path"]), how)
    assert message.format(path_entry["path"]) in refused(path_entry, tmp_path / "tiny")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"shape": SHAPE | {"kv_heads": 4}}, "tiny.shape.kv_heads: is 4, but the model's config.json says 2"),
        (
            {"shape": SHAPE | {"head_dim": 8}},
            "tiny.shape.head_dim: is 8, but the model's config.json says 16",
        ),
        ({"max_positions": 5000}, "tiny.max_positions: is 5000, but the model's config.json allows 4096"),
    ],
)
def test_facts_that_the_model_contradicts_are_refused(
    path_entry: Entry, tmp_path: Path, facts: Entry, message: str
) -> None:
    assert message in refused(path_entry | facts, tmp_path / "tiny")


def test_a_context_limit_under_the_models_own_is_allowed(path_entry: Entry, tmp_path: Path) -> None:
    fetch_model("tiny", path_entry | {"max_positions": 1000}, tmp_path / "tiny")
    assert (tmp_path / "tiny" / "provenance.json").is_file()
