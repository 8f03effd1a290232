"""A run that was stored under names which were given up is brought to the names of now.

Words alone change: a file's name, a key, a question mode, a method's name. Used by `kvatlas check --accept`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from kvatlas.files import read_json, read_jsonl, write_json, write_jsonl
from kvatlas.paths import Paths
from kvatlas.schemas.renamed import RENAMED_KEYS, RENAMED_METHODS, RENAMED_MODES
from kvatlas.tracking import checksums

RENAMED_FOLDERS = {"checked": "verified"}
"""Folders of a run's results: old name -> the name now."""
# What these keys hold is, or begins with, a mode or a method: `floor-512-0`, `emeans_pre_rope_mass-4x`.
_NAMED_KEYS = ("mode", "group", "method", "arm")
_NEW_NAMES = RENAMED_MODES | RENAMED_METHODS
# What holds specs, trials or groups, and is kept; tables are removed, so that they and the report are made again.
_REWRITTEN = ("prompts", "prefill", "cells", "embeddings")
_TABLES = "tables"


def bring_over(paths: Paths) -> list[str]:
    """Rename what the run stored under old names, in paths and inside files, and return the files that changed.

    Where there are any, the run's tables are removed: they hold old names too.
    """
    root = Path(paths.results)
    changed: list[str] = []
    for path in sorted(file for file in root.rglob("*") if file.is_file()):
        target = root.joinpath(*map(_renamed_name, path.relative_to(root).parts))
        if target != path and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
            _remove_empty(path.parent, root)
            changed.append(target.as_posix())
    for folder in _REWRITTEN:
        changed += [path.as_posix() for path in sorted((root / folder).rglob("*.json*")) if _rewrite(path)]
    if changed:
        shutil.rmtree(root / _TABLES, ignore_errors=True)
    return list(dict.fromkeys(changed))


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def renamed(value: Any, key: str = "") -> Any:
    """Return a JSON value with keys, modes and methods under their names of now; `key` is what it stands under."""
    if isinstance(value, dict):
        return {RENAMED_KEYS.get(name, name): renamed(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, key) for item in value]
    return _renamed_start(value) if key in _NAMED_KEYS and isinstance(value, str) else value


def _renamed_name(name: str) -> str:
    return RENAMED_FOLDERS.get(name, _renamed_start(name))


def _renamed_start(text: str) -> str:
    """A group, an arm or a file's name, by its first word."""
    first, dash, rest = text.partition("-")
    return f"{_NEW_NAMES.get(first, first)}{dash}{rest}"


def _rewrite(path: Path) -> bool:
    by_line = path.suffix == ".jsonl"
    before = read_jsonl(path) if by_line else read_json(path)
    after = renamed(before)
    if after == before:
        return False
    if by_line:
        write_jsonl(path, after)
    else:
        write_json(path, after)
    if by_line or not path.name.endswith((".timing.json", ".checksum.json")):
        checksums.record(path)
    return True
