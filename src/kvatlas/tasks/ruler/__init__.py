"""RULER's synthetic tasks (2404.06654), made here.

One file each with a record `TASK` and `make_prompts`; a task is found by its file.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from kvatlas.errors import KvatlasError
from kvatlas.tasks.long_context import LongTask


@cache
def all_tasks() -> Mapping[str, LongTask]:
    """Return the tasks by name. Raises KvatlasError for a file without its record."""
    tasks = {}
    for module in pkgutil.iter_modules(__path__):
        loaded = importlib.import_module(f"{__name__}.{module.name}")
        task = getattr(loaded, "TASK", None)
        if not isinstance(task, LongTask) or task.name != module.name or not hasattr(loaded, "make_prompts"):
            raise KvatlasError(
                f"tasks/ruler/{module.name}.py: it needs `make_prompts` and a record TASK with the name '{module.name}'"
            )
        tasks[task.name] = task
    return tasks
