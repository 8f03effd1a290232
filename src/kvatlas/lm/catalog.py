"""The catalogs of models and texts: config/models.yaml and config/texts.yaml, read and validated.

Knows nothing of torch, transformers or the network, so that names are checked before any job starts.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Hashable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json
from kvatlas.paths import MODELS_FILE, PACKAGE_FOLDER, TEXTS_FILE

_SCHEMAS = PACKAGE_FOLDER / "schemas"

Entry = Mapping[str, Any]


def load_models(path: Path | str = MODELS_FILE) -> dict[str, dict[str, Any]]:
    """Read the models catalog, name -> entry. Raises KvatlasError that names the file and the key."""
    return _load(Path(path), "models.schema.json")


def load_texts(path: Path | str = TEXTS_FILE) -> dict[str, dict[str, Any]]:
    """Read the texts catalog, name -> entry. Raises KvatlasError that names the file and the key."""
    return _load(Path(path), "texts.schema.json")


def find_model(models: Mapping[str, Entry], name: str, role: str, file: str = MODELS_FILE) -> Entry:
    """The entry of model `name`, of role `lm` or `embedder`. Raises KvatlasError if there is none."""
    entry = _find(models, name, "model", file)
    if entry["role"] != role:
        fitting = ", ".join(sorted(key for key, value in models.items() if value["role"] == role)) or "none"
        raise KvatlasError(f"model {name!r} has role {entry['role']} in {file}, not {role}; with that role: {fitting}")
    return entry


def find_text(texts: Mapping[str, Entry], name: str, file: str = TEXTS_FILE) -> Entry:
    """The entry of the text `name`. Raises KvatlasError that lists the known texts."""
    return _find(texts, name, "text", file)


def _find(catalog: Mapping[str, Entry], name: str, kind: str, file: str) -> Entry:
    if name in catalog:
        return catalog[name]
    raise KvatlasError(
        f"{kind} {name!r} is not in {file}{_suggestion(name, catalog)}; known: {', '.join(sorted(catalog))}"
    )


def _suggestion(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a key given twice is an error instead of silently the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        merge = "tag:yaml.org,2002:merge"
        keys = [self.construct_object(key, deep=True) for key, _ in node.value if key.tag != merge]
        for position, key in enumerate(keys):
            if key in keys[:position]:
                line = node.value[position][0].start_mark.line + 1
                raise yaml.constructor.ConstructorError(problem=f"key {key!r} is given twice (line {line})")
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> Any:
    try:
        # The strict loader is a SafeLoader: it builds plain values only.
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such file; run the command in the folder that holds config/") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KvatlasError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error


def _load(path: Path, schema: str) -> dict[str, dict[str, Any]]:
    data = _read_yaml(path)
    validator = jsonschema.Draft202012Validator(read_json(_SCHEMAS / schema))
    errors = sorted(validator.iter_errors(data), key=lambda error: list(map(str, error.absolute_path)))
    if errors:
        where = ".".join(map(str, errors[0].absolute_path))
        raise KvatlasError(f"{path}: {where + ': ' if where else ''}{_explain(errors[0], data)}")
    catalog: dict[str, dict[str, Any]] = data
    return catalog


def _explain(error: jsonschema.ValidationError, data: Any) -> str:
    """One line for one schema error, in the words of someone who edits the YAML file."""
    schema = error.schema if isinstance(error.schema, dict) else {}
    rule: Any = error.validator_value
    value: Any = error.instance
    match error.validator:
        case "additionalProperties":
            known = list(schema.get("properties", {}))
            unknown = next(key for key in value if key not in known)
            return f"unknown key {unknown!r}{_suggestion(str(unknown), known)}; allowed: {', '.join(known)}"
        case "required":
            missing = next(key for key in rule if key not in value)
            return f"key {missing!r} is missing"
        case "enum":
            close = _suggestion(str(value), rule)
            return f"{value!r} is not allowed{close}; choose from {', '.join(rule)}"
        case "not":  # a key of another source or role
            entry = data[error.absolute_path[0]]
            role = f" and role {entry['role']!r}" if "role" in entry else ""
            return f"key {value!r} has no meaning with source {entry.get('source')!r}{role}; remove it"
        case _ if "description" in schema:
            return f"{value!r} is not valid: {schema['description']}"
        case _:
            return error.message
