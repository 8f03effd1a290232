"""Schema errors in the words of someone who edits the YAML file: the key's path, what is wrong, what is allowed.

Knows JSON schema's rules and the names that were given up; knows no files.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from jsonschema.exceptions import ValidationError

from kvatlas.schemas.renamed import RENAMED_KEYS, RENAMED_MODES

_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most"}
_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a map",
    "null": "nothing",
}


def closest(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that was probably meant (its new name, if it has one), or an empty string."""
    known = list(known)
    renamed = (RENAMED_KEYS | RENAMED_MODES).get(str(word))
    if renamed in known:
        return f"; `{word}` is called `{renamed}` now"
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def explain(error: ValidationError, document: Any) -> str:
    """Explain one schema error of `document` in one line."""
    path = key_path(error.absolute_path, document)
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, dict) else {}
    rule, value, allowed = str(error.validator), cast(Any, error.instance), cast(Any, error.validator_value)
    if rule == "additionalProperties":
        known = list(schema.get("properties", {}))
        unknown = next(key for key in value if key not in known)
        return f"{_join(path, unknown)}: unknown key{closest(unknown, known)}; allowed here: {', '.join(known)}"
    if rule == "required":
        return missing_keys(path, [key for key in allowed if key not in value])
    if rule == "not":  # a key of another source or role
        entry = _at(document, error.absolute_path)
        kinds = " and ".join(f"{key} '{entry[key]}'" for key in ("source", "role") if key in entry)
        return f"{_join(path, value)}: this key has no meaning with {kinds}; remove it"
    hint = f"; {schema['description']}" if "description" in schema else ""
    fault = f"{_fault(rule, value, allowed) or ' '.join(error.message.split())}{hint}"
    return f"{path}: {fault}" if path else fault


def missing_keys(path: str, missing: Sequence[str]) -> str:
    """Name the keys that one place lacks, in one line."""
    first, *others = (_join(path, key) for key in missing)
    return f"{first}: this key is missing" if not others else f"{', '.join([first, *others])}: these keys are missing"


def _fault(rule: str, value: Any, allowed: Any) -> str | None:
    """Return what is wrong with a value; None for rarer rules."""
    fault = None
    match rule:
        case "enum":
            words = list(map(str, allowed))
            fault = f"{value!r} is not allowed{closest(str(value), words)}; choose from {', '.join(words)}"
        case "const":
            fault = f"{value!r} is not allowed here, only {allowed!r}"
        case "type":
            fault = f"{_shown(value)} is not {_named(allowed)}"
        case "minimum" | "exclusiveMinimum" | "maximum":
            fault = f"{value} is out of range, it must be {_BOUNDS[rule]} {allowed}"
        case "minItems" | "minProperties" | "minLength" if allowed == 1:
            fault = "must not be empty"
        case "uniqueItems":
            fault = f"{next(item for index, item in enumerate(value) if item in value[:index])!r} is listed twice"
        case "pattern":
            fault = f"{value!r} is not valid"
    return fault


def key_path(steps: Iterable[str | int], document: Any) -> str:
    """Write the path of a key: `studies.needle.contexts[0]`, `claims[snapkv-beats-h2o].test`.

    An entry of a list stands under its id where it has one, else under its number, from 0.
    """
    path, value = "", document
    for step in steps:
        value = value[step]
        if isinstance(step, int):
            name = value.get("id") if isinstance(value, dict) else None
            path = f"{path}[{name if isinstance(name, str) and name else step}]"
        else:
            path = _join(path, step)
    return path


def _at(document: Any, steps: Iterable[str | int]) -> Any:
    for step in steps:
        document = document[step]
    return document


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _shown(value: Any) -> str:
    return {dict: "a map", list: "a list", type(None): "nothing"}.get(type(value)) or repr(value)


def _named(types: Any) -> str:
    return " or ".join(_TYPES[name] for name in ([types] if isinstance(types, str) else types))
