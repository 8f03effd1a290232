"""The process in which chat templates are rendered: a template is a program of a stranger's, so it gets limits of its own.

Run as a file, not imported for its work: it reads one JSON request per line from standard input, and answers each with one
line. It imports jinja2 and nothing of kvatlas or transformers, so that it starts at once. The environment of templates is
transformers', with a fixed date in place of today's.
"""

from __future__ import annotations

import json
import random
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

TODAY = datetime(2024, 7, 26)
"""The date that every chat template is told, so that a prompt is the same on every day."""

TEXT_LIMIT = 10_000_000  # characters of a rendered prompt; a template that needs more multiplies what it is given
_REASON_LIMIT = 200  # characters


class _Generation(Extension):
    """The tag `generation`, which marks the assistant's words for training and prints them as they are."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Return a block that calls `_print` with the statements between the tags."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(Namespace):
    """A namespace without underscored attributes, which lead into the interpreter."""

    def __init__(*args: Any, **attributes: Any) -> None:
        self, values = args[0], dict(*args[1:], **attributes)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


class _Dict:
    """The function `dict` of templates."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As the method of dict."""
        return dict.fromkeys(*args)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"chat templates cannot store {name!r} in a namespace")


def _raise_exception(message: Any) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=4)
def _compiled(template: str) -> Any:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": TODAY.strftime,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """Render `request["template"]` with `request["variables"]`.

    Returns `text`; or `refused`, the reason for which the template raised an error of its own; or `failed`, where it broke.
    """
    random.seed(0)  # jinja draws with this generator
    try:
        text = _compiled(request["template"]).render(**request["variables"])
    except TemplateError as error:
        return {"refused": _reason(error)}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {_reason(error)}"}
    if len(text) > TEXT_LIMIT:
        return {"failed": f"it makes a prompt of more than {TEXT_LIMIT} characters"}
    return {"text": text}


def _reason(error: Exception) -> str:
    with suppress(Exception):
        return " ".join(str(error).split())[:_REASON_LIMIT]
    return ""


def _limit_cpu(seconds: int) -> None:
    """Let the system end this process when it has computed `seconds` from now."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


def serve(cpu_seconds: int, memory_bytes: int) -> None:
    """Answer requests until standard input closes, each within `cpu_seconds`, all within `memory_bytes`."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(ValueError, OSError):  # macOS has no such limit; time is bounded there all the same
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    for line in sys.stdin:
        _limit_cpu(cpu_seconds)
        try:
            reply = json.dumps(answer(json.loads(line)))
        except MemoryError:
            reply = json.dumps({"failed": "it takes too much memory"})
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
