"""The page docs/configuration.md, made from the configuration's JSON schema so that it cannot fall behind.

A pure function of the schema; knows nothing of runs, models or the grid.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import write_text
from kvatlas.grid.config import schema

PAGE = "docs/configuration.md"
_HEAD = """# Configuration

<!-- Made by `kvatlas docs` from src/kvatlas/schemas/config.schema.json and src/kvatlas/grid/studies/. Edit those instead. -->

A configuration is one YAML file, complete in itself: `snakemake --configfile FILE` replaces `config/config.yaml` and is
not merged into it. Everything is checked before any job starts; a mistake is reported in one line that names the key, what
is allowed and the closest match. `kvatlas validate --configfile FILE` does the same alone, and
`kvatlas plan --configfile FILE` reports how much work it is.

Keys in **bold** are required. The full cache is an arm of every study without being listed, and prompt tasks always
have a mode `no_context` (the question without its context). A budget is a quoted text: `"4x"` divides what is neither
sink nor protected recent slot, `"50%"` is a share of all prompt tokens, `"256"` is a number of slots. Models and texts
are named in `config/models.yaml` and `config/texts.yaml`, whose comments say how to add one; what a policy's
parameters mean is in [methods.md](methods.md).
"""
_KINDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "array": "list",
    "object": "map",
}
_BOUNDS = (("minimum", "from {}"), ("maximum", "to {}"))

Schema = Mapping[str, Any]


def configuration_page(schema: Schema) -> str:
    """Return the page as Markdown: a table for the top level, for each study, and for each map that they share."""
    top = schema["properties"]
    studies = top["studies"]["properties"]
    sections = [("## The run", schema), ("## Where a report is published: `publish`", top["publish"])]
    sections += [(f"## Study `{name}`", study) for name, study in studies.items()]
    shared = schema["$defs"]
    sections += [("## Question modes: `modes`", shared["modes"])]
    own = {name: study["properties"].get("modes", {}) for name, study in studies.items()}
    sections += [(f"## Question modes of `{name}`", modes) for name, modes in own.items() if "properties" in modes]
    sections += [("## A map of arms", shared["arms"])]
    sections += [
        ("## A map of arms of a stream", shared["stream_arms"]),
        ("## A protection: a value of `protections`", shared["protections"]["additionalProperties"]),
    ]
    return "\n".join([_HEAD, *(f"{title}\n\n{_table(schema, section)}\n" for title, section in sections)])


def write_configuration(path: Path | str = PAGE) -> None:
    """Write the page. Raises KvatlasError when the schema refers to something that it does not define."""
    write_text(path, configuration_page(schema()))


def _table(root: Schema, section: Schema) -> str:
    lines = ["| key | value | default | meaning |", "| --- | --- | --- | --- |"]
    for key, entry in section["properties"].items():
        resolved = _resolved(root, entry)
        name = f"**`{key}`**" if key in section.get("required", ()) else f"`{key}`"
        default = f"`{json.dumps(resolved['default'])}`" if "default" in resolved else ""
        meaning = html.escape(resolved.get("description", ""), quote=False)
        cells = (name, _kind(root, resolved), default, meaning)
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |")
    return "\n".join(lines)


def _resolved(root: Schema, entry: Schema) -> Schema:
    """Follow a reference; what stands beside it wins over what it points to."""
    if "$ref" not in entry:
        return entry
    name = entry["$ref"].removeprefix("#/$defs/")
    if name not in root["$defs"]:
        raise KvatlasError(f"config.schema.json: $ref to {name}, which $defs does not have")
    return {**root["$defs"][name], **{key: value for key, value in entry.items() if key != "$ref"}}


def _kind(root: Schema, entry: Schema) -> str:
    """Return in words which values are allowed."""
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    types = entry.get("type", "object")
    return " or ".join(_named(root, entry, kind) for kind in ([types] if isinstance(types, str) else types))


def _named(root: Schema, entry: Schema, kind: str) -> str:
    if kind == "array" and "items" in entry:
        return f"list: {_kind(root, _resolved(root, entry['items']))}"
    bounds = " ".join(_bounds(entry)) if kind in ("integer", "number") else ""
    return f"{_KINDS[kind]} {bounds}".strip()


def _bounds(entry: Schema) -> Iterator[str]:
    return (words.format(entry[key]) for key, words in _BOUNDS if key in entry)
