"""Rendering chat templates in a process of their own, with limits on its time and memory.

One process serves all prompts of a job; one that a template brought down is started again for the next. Knows neither
tokenizers nor what a prompt is about.
"""

from __future__ import annotations

import atexit
import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm import template_child

CPU_SECONDS = 10  # for one prompt, which takes milliseconds
MEMORY_BYTES = 1 << 30


class TemplateRefusalError(KvatlasError):
    """The template itself refuses the conversation (`raise_exception`), or is not valid."""


class _Renderer:
    """The process that renders, started at the first request."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def ask(self, request: Mapping[str, Any]) -> dict[str, str] | None:
        """The process' answer, or None when the request brought it down."""
        process = self._process or self._start()
        if process.stdin is None or process.stdout is None:
            raise KvatlasError("chat template: its process has no pipes; run the command again")
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:  # an interrupt: the answer would be taken for the next request's
            self.close()
            raise
        if not line.endswith("\n"):
            self.close()
            return None
        answer: dict[str, str] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", template_child.__file__, str(CPU_SECONDS), str(MEMORY_BYTES)]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=nowhere, text=True, encoding="utf-8", bufsize=-1
        )
        return self._process


_RENDERER = _Renderer()


def render_template(template: str, variables: Mapping[str, Any]) -> str:
    """Render a chat template as transformers does, on a fixed date, with draws from a fixed seed.

    `variables` are JSON values. Raises TemplateRefusalError when the template refuses them, and KvatlasError when it breaks,
    does not end, or takes too much memory.
    """
    answer = _RENDERER.ask({"template": template, "variables": dict(variables)})
    if answer is None:
        raise KvatlasError(
            f"models: the chat template does not end, or takes more than {CPU_SECONDS} seconds or {MEMORY_BYTES >> 20} MiB; "
            "choose another model"
        )
    if "refused" in answer:
        raise TemplateRefusalError(f"models: the chat template refuses the prompt ({answer['refused']})")
    if "failed" in answer:
        raise KvatlasError(f"models: the chat template fails ({answer['failed']}); choose another model")
    return answer["text"]
