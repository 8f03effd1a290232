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

TASKS = {"needle": "kvatlas.tasks.needle", "passkey": "kvatlas.tasks.passkey", "task_suite": "kvatlas.tasks.suite"}
_NOT_FOR_THE_TASK = ("kind", "study", "model", "fingerprint", "upstream")


def run(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Write the prompts of `spec` to `output`, one JSON line each; `inputs` has `model` (a folder) and perhaps `text`.

    Raises KvatlasError when the task cannot meet the spec, or when prompts of the file differ in length.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(inputs["model"]), local_files_only=True)
    arguments = {key: value for key, value in spec.items() if key not in _NOT_FOR_THE_TASK}
    text = inputs.get("text")
    arguments["corpus"] = None if text is None else Path(text).read_text(encoding="utf-8")
    task = importlib.import_module(TASKS[spec["study"]])
    prompts = task.make_prompts(tokenizer, **arguments)
    if len({len(prompt["ids"]) for prompt in prompts}) != 1:
        raise KvatlasError(f"{output}: the prompts of a file must have one length; this is a defect of the task")
    write_jsonl(output, prompts)
