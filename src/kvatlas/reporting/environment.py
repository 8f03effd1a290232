"""The environment of the page templates: undefined names are errors, and what is printed is escaped for its page."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Undefined
from markupsafe import Markup

from kvatlas.reporting import escape

SAMPLE_LIMIT = 200  # characters of an output in the side-by-side table


def html(folder: str = "templates", finalize: Callable[[Any], Any] | None = None) -> Environment:
    """Make the environment of the templates in a folder of this package; what is not Markup is escaped for HTML."""
    return Environment(
        loader=PackageLoader("kvatlas.reporting", folder),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def markdown() -> Environment:
    """Make the environment of the Markdown pages; what is not Markup is escaped for Markdown."""
    templates = html(finalize=_markdown)
    templates.filters["md"] = Markup
    templates.filters["anchor"] = lambda text: Markup(quote(str(text), safe=""))
    templates.filters["code"] = lambda text: Markup(_code(str(text)))
    templates.filters["short"] = lambda text: Markup(escape.cell(str(text), SAMPLE_LIMIT))
    templates.filters["fence"] = lambda text: Markup(escape.fence(str(text)))
    templates.filters["html"] = lambda text: Markup(escape.html(str(text), None))
    return templates


def _code(text: str) -> str:
    """Spell a name inside a code span: a plain one as it is, any other escaped and without the end of the span."""
    return text if re.fullmatch(r"[A-Za-z0-9_.-]+", text) else escape.cell(text.replace("`", "'"), None)


def _markdown(value: Any) -> Any:
    """Escape what a template prints; an undefined name passes through so that it raises where it is used."""
    if isinstance(value, Markup | Undefined):
        return value
    return Markup(escape.cell(str(value), None))
