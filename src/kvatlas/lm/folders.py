"""Checks on a model folder in hub layout: complete weights, no pickles, the facts that the catalog states.

Reads only JSON and safetensors headers; knows nothing of torch, transformers or where a folder came from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError

# What is fetched, linked and read; pickles (*.bin, *.pt, *.pth) and code (*.py) are not among it.
MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", "LICENSE*")
PROVENANCE = "provenance.json"  # written beside them by the fetching side, not one of them
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_INDEX = "model.safetensors.index.json"
_HEADER_LIMIT = 100_000_000  # bytes; the format's own limit for the JSON header


def model_files(folder: Path) -> list[str]:
    """The model files below `folder`, as sorted relative paths with `/`; hidden folders are left out."""
    files: set[str] = set()
    for pattern in MODEL_FILES:
        for path in folder.rglob(pattern):
            relative = path.relative_to(folder)
            hidden = any(part.startswith(".") for part in relative.parts)
            if path.is_file() and not hidden and path.name != PROVENANCE:
                files.add(relative.as_posix())
    return sorted(files)


def check_folder(folder: Path, label: str) -> None:
    """Raise KvatlasError, starting with `label`, unless `folder` has a config, a tokenizer, whole weights."""
    if not folder.is_dir():
        raise KvatlasError(f"{label}: {folder} is not a folder")
    _read_config(folder, label)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise KvatlasError(f"{label}: {folder} has no tokenizer (tokenizer.json)")
    weights = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not weights:
        raise KvatlasError(f"{label}: {folder} {_why_no_weights(folder)}")
    missing = sorted(_shards(folder, label) - {path.name for path in weights})
    if missing:
        raise KvatlasError(f"{label}: {folder} lacks {', '.join(missing)}, which {_INDEX} names; fetch it again")
    for path in weights:
        check_weights(path, label)


def check_weights(path: Path, label: str) -> None:
    """Raise KvatlasError unless the safetensors file at `path` is as long as its header says."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = stream.read(length) if length <= min(size - 8, _HEADER_LIMIT) else b""
    try:
        tensors = json.loads(header)
        end = max(
            (tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"),
            default=0,
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        end = -1
    if end < 0 or 8 + length + end != size:
        raise KvatlasError(f"{label}: {path} ({size} bytes) is truncated or not a safetensors file; fetch it again")


def check_facts(folder: Path, entry: Mapping[str, Any], label: str) -> None:
    """Raise KvatlasError if `entry` states another shape or more positions than the folder's config.json."""
    config = _read_config(folder, label)
    heads = config.get("num_attention_heads")
    head_dim = config.get("head_dim") or (heads and config.get("hidden_size", 0) // heads)
    actual = {
        "layers": config.get("num_hidden_layers"),
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads", heads),
        "head_dim": head_dim,
    }
    for key, stated in entry.get("shape", {}).items():
        if actual[key] is not None and actual[key] != stated:
            raise KvatlasError(f"{label}.shape.{key}: is {stated}, but the model's config.json says {actual[key]}")
    limit, stated = config.get("max_position_embeddings"), entry.get("max_positions")
    if limit is not None and stated is not None and stated > limit:
        raise KvatlasError(f"{label}.max_positions: is {stated}, but the model's config.json allows {limit}")


def stop_token_ids(folder: Path) -> list[int]:
    """The token ids that end a reply: `eos_token_id` of generation_config.json, else of config.json."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        ids = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        if ids is not None:
            return [ids] if isinstance(ids, int) else list(ids)
    return []


def _read_config(folder: Path, label: str) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise KvatlasError(f"{label}: {folder} has no config.json; it is not a model folder in hub layout") from error
    except ValueError as error:
        raise KvatlasError(f"{label}: {path} is not valid JSON; fetch it again") from error
    if not isinstance(config, dict):
        raise KvatlasError(f"{label}: {path} is not a JSON object; fetch it again")
    return config


def _shards(folder: Path, label: str) -> set[str]:
    path = folder / _INDEX
    if not path.is_file():
        return set()
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KvatlasError(f"{label}: {path} is not a valid index of weight files; fetch it again") from error


def _why_no_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        return "has no weights (*.safetensors)"
    return (
        f"has only pickle weights ({', '.join(pickles)}); a pickle can run code, so they are refused: "
        "convert them to safetensors or take a revision that has them"
    )
