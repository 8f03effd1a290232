"""The catalogs of models and texts: config/models.yaml and config/texts.yaml, read and validated.

Knows nothing of torch, transformers or the network, so that names are checked before any job starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm.model_config import config_facts
from kvatlas.paths import MODELS_FILE, TEXTS_FILE
from kvatlas.schemas import reader
from kvatlas.schemas.messages import closest

WAY_OUT = "run the command in the folder that holds config/"

__all__ = ["TEXTS_FILE", "find_model", "find_text", "load_models", "load_texts", "model_titles"]

Entry = Mapping[str, Any]


def load_models(path: Path | str = MODELS_FILE) -> dict[str, dict[str, Any]]:
    """Read the models catalog, name -> entry. Raises KvatlasError that names the file and the key.

    What an entry of a local folder leaves out (`shape`, `max_positions`) is what the folder's config.json says.
    """
    return {name: _inferred(name, entry) for name, entry in _load(Path(path), "models").items()}


def _inferred(name: str, entry: dict[str, Any]) -> dict[str, Any]:
    folder = Path(entry.get("path", "")).expanduser()
    if entry["source"] != "path" or entry["role"] != "lm" or not (folder / "config.json").is_file():
        return entry
    return config_facts(folder, f"{MODELS_FILE}: {name}.path") | entry


@cache
def model_titles(path: Path) -> Mapping[str, str]:
    """Return how pages call the models of a catalog, name -> title; none where there is no such file."""
    return {name: entry["title"] for name, entry in load_models(path).items()} if path.is_file() else {}


def load_texts(path: Path | str = TEXTS_FILE) -> dict[str, dict[str, Any]]:
    """Read the texts catalog, name -> entry. Raises KvatlasError that names the file and the key."""
    return _load(Path(path), "texts")


def find_model(models: Mapping[str, Entry], name: str, role: str, file: str = MODELS_FILE) -> Entry:
    """The entry of model `name`, of role `lm` or `embedder`. Raises KvatlasError if there is none."""
    entry = _find(models, name, "model", file)
    if entry["role"] != role:
        fitting = ", ".join(sorted(key for key, value in models.items() if value["role"] == role)) or "none"
        raise KvatlasError(f"model {name!r} has role {entry['role']} in {file}, not {role}; with that role: {fitting}")
    return entry


def find_text(texts: Mapping[str, Entry], name: str, file: str = TEXTS_FILE) -> Entry:
    """The entry of the text `name`. Raises KvatlasError that lists the known texts."""
    return _find(texts, name, "text", file)


def _find(catalog: Mapping[str, Entry], name: str, kind: str, file: str) -> Entry:
    if name in catalog:
        return catalog[name]
    raise KvatlasError(f"{kind} {name!r} is not in {file}{closest(name, catalog)}; known: {', '.join(sorted(catalog))}")


def _load(path: Path, schema: str) -> dict[str, dict[str, Any]]:
    catalog: dict[str, dict[str, Any]] = reader.read_checked(path, schema, way_out=WAY_OUT)
    return catalog
