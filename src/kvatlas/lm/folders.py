"""Checks on a model folder in hub layout: complete weights, no pickles, no code, the facts that the catalog states.

Reads only JSON and safetensors headers; knows nothing of torch, transformers or where a folder came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm.model_config import (
    check_decoder,
    check_numbers,
    check_sizes,
    config_facts,
    read_object,
    refuse_code,
    refuse_packed,
)
from kvatlas.lm.weight_headers import Tensor, read_tensors

# What is fetched, linked and read; pickles (*.bin, *.pt, *.pth) and code (*.py) are not among it. Licences go by their
# exact names: a pattern would let in LICENSE_x.py.
LICENCE_FILES = tuple(f"{name}{suffix}" for name in ("LICENSE", "LICENCE", "NOTICE") for suffix in ("", ".txt", ".md"))
MODEL_FILES = ("*.safetensors", "*.json", "*.txt", "*.jinja", "*.model", *LICENCE_FILES)
PROVENANCE = "provenance.json"  # written beside them by the fetching side, not one of them
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_INDEX = "model.safetensors.index.json"


def is_model_file(name: str) -> bool:
    """Whether a file of this name, without folders, belongs to a model folder."""
    return name != PROVENANCE and any(fnmatchcase(name, pattern) for pattern in MODEL_FILES)


def model_files(folder: Path) -> list[str]:
    """The model files below `folder`, as sorted relative paths with `/`; hidden folders are left out."""
    files: set[str] = set()
    for path in folder.rglob("*"):
        relative = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in relative.parts)
        if not hidden and is_model_file(path.name) and path.is_file():
            files.add(relative.as_posix())
    return sorted(files)


def check_folder(folder: Path, label: str, role: str = "lm") -> None:
    """Raise KvatlasError, starting with `label`, unless `folder` has a config, a tokenizer, whole weights and no code.

    A language model (`role` lm) must be a plain decoder-only one besides, with no more layers than weights.
    """
    try:
        _check_folder(folder, label, role)
    except OSError as error:
        raise KvatlasError(f"{label}: {folder} cannot be read ({error.strerror})") from error


def _check_folder(folder: Path, label: str, role: str) -> None:
    if not folder.is_dir():
        raise KvatlasError(f"{label}: {folder} is not a folder")
    config = read_object(folder / "config.json", label)
    refuse_code(folder, label)
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise KvatlasError(f"{label}: {folder} has no tokenizer (tokenizer.json)")
    unreadable = [name for name in model_files(folder) if not name.isprintable()]
    if unreadable:
        raise KvatlasError(f"{label}: {folder} has a file with an unreadable name, {unreadable[0]!a}; rename it")
    check_numbers(config, label)
    if role == "lm":
        check_decoder(config, label)
    tensors = _weights(folder, label)
    if role == "lm":
        refuse_packed(tensors, label)
        check_sizes(config, tensors, label)


def _weights(folder: Path, label: str) -> dict[str, Tensor]:
    """The tensors of all weight files, whose headers are checked."""
    weights = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not weights:
        raise KvatlasError(f"{label}: {folder} {_why_no_weights(folder)}")
    missing = sorted(_shards(folder, label) - {path.name for path in weights})
    if missing:
        raise KvatlasError(f"{label}: {folder} lacks {', '.join(missing)}, which {_INDEX} names; fetch it again")
    tensors: dict[str, Tensor] = {}
    for path in weights:
        tensors |= read_tensors(path, label)
    return tensors


def check_facts(folder: Path, entry: Mapping[str, Any], label: str) -> None:
    """Raise KvatlasError if `entry` states another shape or more positions than the folder's config.json."""
    facts = config_facts(folder, label)
    actual, limit = facts.get("shape", {}), facts.get("max_positions")
    for key, stated in entry.get("shape", {}).items():
        if key in actual and actual[key] != stated:
            raise KvatlasError(f"{label}.shape.{key}: is {stated}, but the model's config.json says {actual[key]}")
    stated = entry.get("max_positions")
    if limit is not None and stated is not None and stated > limit:
        raise KvatlasError(f"{label}.max_positions: is {stated}, but the model's config.json allows {limit}")


def _shards(folder: Path, label: str) -> set[str]:
    path = folder / _INDEX
    if not path.is_file():
        return set()
    named = read_object(path, label).get("weight_map")
    if not isinstance(named, dict) or not all(isinstance(name, str) and name.isprintable() for name in named.values()):
        raise KvatlasError(f"{label}: {path} is not a valid index of weight files; fetch it again")
    return set(named.values())


def _why_no_weights(folder: Path) -> str:
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if not pickles:
        return "has no weights (*.safetensors)"
    return (
        f"has only pickle weights ({', '.join(pickles)}); a pickle can run code, so they are refused: "
        "convert them to safetensors or take a revision that has them"
    )
