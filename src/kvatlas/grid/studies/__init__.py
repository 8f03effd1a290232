"""One record per study, one file each; a study is found by its file."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kvatlas.errors import KvatlasError
from kvatlas.grid.study import Study
from kvatlas.paths import PACKAGE_FOLDER


@cache
def all_studies() -> Mapping[str, Study]:
    """Return the records of all studies by name, in the order of a page. Raises KvatlasError for a file without one."""
    records = []
    for module in pkgutil.iter_modules(__path__):
        record = getattr(importlib.import_module(f"{__name__}.{module.name}"), "STUDY", None)
        if not isinstance(record, Study) or record.name != module.name:
            raise KvatlasError(f"grid/studies/{module.name}.py: it needs a record STUDY with the name '{module.name}'")
        records.append(record)
    return {record.name: record for record in sorted(records, key=lambda record: record.order)}


def known_tasks(study: str) -> list[str]:
    """Return the tasks that a study may name: those that write prompts, but for those of other kinds of studies."""
    tasks = [path.stem for path in sorted((PACKAGE_FOLDER / "tasks").glob("*.py")) if _writes_prompts(path)]
    kind = all_studies()[study].kind
    taken = {record.task for record in all_studies().values() if record.kind != kind}
    return [task for task in tasks if task not in taken]


def _writes_prompts(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.FunctionDef) and node.name == "make_prompts" for node in tree.body)


def trial_kinds() -> list[str]:
    """Return the kinds of cells that make trials, each once."""
    return list(dict.fromkeys(record.kind for record in all_studies().values()))
