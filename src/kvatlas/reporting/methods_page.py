"""The tables of docs/methods.md, made from the registrations of policies and quantizers so that they cannot fall behind.

Everything outside the marks of a table is prose and stays as it is. A row's text is the docstring of the method.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kvatlas.compression import methods
from kvatlas.errors import KvatlasError
from kvatlas.files import write_text
from kvatlas.grid.policy_parameters import policy_fields

PAGE = "docs/methods.md"
_BEGIN = "<!-- begin {}: made from the methods' files by `kvatlas docs`; edit those, not this table -->"
_END = "<!-- end {} -->"
_POLICY_COLUMNS = ("policy", "on pages", "what it does", "parameters", "source")
_QUANTIZER_COLUMNS = ("quantizer", "what it stores", "granularity", "source")


def methods_page(page: str) -> str:
    """Return the text of the page with its tables made anew. Raises KvatlasError where a table's marks are missing."""
    tables = {
        "eviction": _table(_POLICY_COLUMNS, _policy_rows("eviction")),
        "clustering": _table(_POLICY_COLUMNS, _policy_rows("clustering")),
        "quantizers": _table(_QUANTIZER_COLUMNS, _quantizer_rows()),
    }
    for name, table in tables.items():
        begin, end = _BEGIN.format(name), _END.format(name)
        if page.count(begin) != 1 or page.count(end) != 1 or page.index(end) < page.index(begin):
            raise KvatlasError(
                f"{PAGE}: the table '{name}' is not between its marks; write {begin} before it, {end} after"
            )
        before, _, rest = page.partition(begin)
        page = f"{before}{begin}\n\n{table}\n\n{end}{rest.partition(end)[2]}"
    return page


def write_methods(path: Path | str = PAGE) -> None:
    """Write the page's tables anew. Raises KvatlasError when the page or the marks of a table are missing."""
    try:
        page = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such file; run the command in the folder that holds docs/") from error
    write_text(path, methods_page(page))


def _policy_rows(kind: str) -> Iterable[Sequence[str]]:
    for name, registration in methods.policies().items():
        if registration.kind == kind:
            fields = policy_fields(name).values()
            parameters = ", ".join(f"`{field.name}: {_yaml(field.default)}`" for field in fields)
            yield f"`{name}`", registration.label, registration.summary, parameters, _linked(registration.source)


def _quantizer_rows() -> Iterable[Sequence[str]]:
    quantizers = methods.quantizers()
    for name in sorted(quantizers, key=lambda name: (quantizers[name].module, -quantizers[name].bits, name)):
        registration = quantizers[name]
        yield f"`{name}`", registration.summary, registration.granularity or "no scale", _linked(registration.source)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_escaped(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(cell: str) -> str:
    return html.escape(cell, quote=False).replace("|", "\\|")


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _linked(source: str) -> str:
    return re.sub(r"arXiv (\d{4}\.\d{4,5})", r"[arXiv \1](https://arxiv.org/abs/\1)", source)
