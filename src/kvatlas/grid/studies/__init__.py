"""One record per study, one file each; a study is found by its file."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from kvatlas.errors import KvatlasError
from kvatlas.grid.study import Study


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


def trial_kinds() -> list[str]:
    """Return the kinds of cells that make trials, each once."""
    return list(dict.fromkeys(record.kind for record in all_studies().values()))
