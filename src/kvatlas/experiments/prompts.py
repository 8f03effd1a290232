"""Writing the prompts of a group: the task's generator run with the model's own tokenizer.

Knows tokenizers, no models; what a prompt looks like is the task's business.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import write_jsonl
from kvatlas.lm.chat import check_joins
from kvatlas.lm.tokenizer import load_tokenizer

_NOT_FOR_THE_TASK = ("kind", "study", "model", "task", "upstream")


def write(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Write the prompts of the task `spec["task"]`, a module of `kvatlas.tasks`, to `output`, one JSON line each.

    `inputs` has `model` (a folder with a tokenizer) and perhaps `text`; the other keys of `spec` go to the task.

    Raises KvatlasError when the task cannot meet the spec, or when prompts of the file differ in length.
    """
    tokenizer = load_tokenizer(inputs["model"])
    check_joins(tokenizer)
    arguments = {key: value for key, value in spec.items() if key not in _NOT_FOR_THE_TASK}
    text = inputs.get("text")
    arguments["corpus"] = None if text is None else text.read_text(encoding="utf-8")
    task = importlib.import_module(f"kvatlas.tasks.{spec['task']}")
    prompts = task.make_prompts(tokenizer, **arguments)
    if len({len(prompt["ids"]) for prompt in prompts}) != 1:
        raise KvatlasError(f"{output}: the prompts of a file must have one length; this is a defect of the task")
    write_jsonl(output, prompts)
