"""Reading and validating a run's configuration, with messages that name the key, what is allowed and the closest match.

Knows the shape of a configuration (a JSON schema); what the values mean together is `kvatlas.grid.validation`'s
business. Imports neither torch nor transformers, so that a typing mistake is told in a second.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import jsonschema
import yaml
from jsonschema.exceptions import ValidationError

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json
from kvatlas.grid import validation
from kvatlas.grid.studies import all_studies
from kvatlas.grid.validation import closest
from kvatlas.paths import PACKAGE_FOLDER

DEFAULT_FILE = "config/config.yaml"
SCHEMA_FILE = PACKAGE_FOLDER / "schemas" / "config.schema.json"

Config = dict[str, Any]


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, except that a key given twice is an error instead of silently the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(problem=f"key '{key}' is given twice (line {line})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read(path: Path | str) -> Config:
    """Read one configuration file; a key given twice is refused. Raises KvatlasError that names the file."""
    try:
        # The strict loader is a SafeLoader: it builds plain values only.
        data = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_StrictLoader)
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such configuration; name one of config/ with --configfile") from error
    except IsADirectoryError as error:
        raise KvatlasError(f"{path}: this is a folder, not a configuration file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KvatlasError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict):
        raise KvatlasError(f"{path}: a configuration is a map of keys; see {DEFAULT_FILE}")
    return data


def load(path: Path | str = DEFAULT_FILE, root: Path | str = ".") -> Config:
    """Read and validate one configuration file; `root` holds `config/models.yaml`. Raises KvatlasError, one line."""
    config = read(path)
    try:
        return validate(config, root)
    except KvatlasError as error:
        raise KvatlasError(f"{path}: {error}") from error


def validate(config: Mapping[str, Any], root: Path | str = ".") -> Config:
    """Return `config` as plain values once schema and meaning are checked; KvatlasError tells the first mistake."""
    # Snakemake hands over its own mapping types; plain values make specs and hashes independent of it.
    plain: Config = json.loads(json.dumps(config))
    errors = sorted(_validator().iter_errors(plain), key=_rank)
    if errors:
        raise KvatlasError(explain(errors[0]))
    validation.check(plain, Path(root))
    return plain


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration: what all runs share, and the keys of each study from its record."""
    shared: dict[str, Any] = read_json(SCHEMA_FILE)
    studies = shared["properties"]["studies"]["properties"]
    studies |= {name: record.config_schema() for name, record in all_studies().items()}
    return shared


@cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(schema())


def _rank(error: ValidationError) -> tuple[int, list[str]]:
    # An unknown key explains more than the missing key that it was meant to be.
    return (
        0 if error.validator in ("additionalProperties", "propertyNames") else 1,
        list(map(str, error.absolute_path)),
    )


def explain(error: ValidationError) -> str:
    """Tell one schema error in one line: the key's path, what is wrong, what is allowed."""
    path = _key_path(error.absolute_path)
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    kind, value, rule = str(error.validator), cast(Any, error.instance), cast(Any, error.validator_value)
    if kind == "additionalProperties":
        known = list(schema.get("properties", {}))
        unknown = next(key for key in value if key not in known)
        return f"{_join(path, unknown)}: unknown key{closest(unknown, known)}; allowed here: {', '.join(known)}"
    if kind == "required":
        missing = next(key for key in rule if key not in value)
        return f"{_join(path, missing)}: this key is missing"
    hint = f"; {schema['description']}" if "description" in schema else ""
    return f"{path}: {_fault(kind, value, rule) or ' '.join(error.message.split())}{hint}"


def _fault(kind: str, value: Any, rule: Any) -> str | None:
    """What is wrong with a value, in the words of someone who edits the YAML file; None for rarer rules."""
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
    match kind:
        case "enum":
            allowed = list(map(str, rule))
            fault = f"{value!r} is not allowed{closest(str(value), allowed)}; choose from {', '.join(allowed)}"
        case "type":
            fault = f"{_shown(value)} is not {_named(rule)}"
        case "minimum" | "exclusiveMinimum" | "maximum":
            fault = f"{value} is out of range, it must be {words[kind]} {rule}"
        case "minItems" | "minProperties" | "minLength":
            fault = "must not be empty"
        case "uniqueItems":
            fault = f"{next(item for place, item in enumerate(value) if item in value[:place])!r} is listed twice"
        case "pattern":
            fault = f"{value!r} is not valid"
        case _:
            return None
    return fault


def _key_path(parts: Iterable[Any]) -> str:
    path = ""
    for part in parts:
        path = f"{path}[{part}]" if isinstance(part, int) else _join(path, str(part))
    return path


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _shown(value: Any) -> str:
    return {dict: "a map", list: "a list", type(None): "nothing"}.get(type(value)) or repr(value)


def _named(types: Any) -> str:
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "a text",
        "boolean": "true or false",
        "array": "a list",
        "object": "a map",
    }
    return " or ".join(words[name] for name in ([types] if isinstance(types, str) else types))
