"""A value that breaks a schema's rule is explained in one line: where, what is wrong, what is allowed."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from kvatlas.schemas.messages import closest, explain
from kvatlas.schemas.renamed import RENAMED_KEYS, RENAMED_MODES


def explained(schema: dict[str, Any], document: Any) -> str:
    (error,) = jsonschema.Draft202012Validator(schema).iter_errors(document)
    return explain(error, document)


def inside(rule: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {"a": {"items": rule}}}


@pytest.mark.parametrize(
    ("rule", "value", "message"),
    [
        ({"type": "integer"}, "x", "a[0]: 'x' is not a whole number"),
        ({"type": ["integer", "object"]}, [], "a[0]: a list is not a whole number or a map"),
        ({"type": ["array", "null"]}, "x", "a[0]: 'x' is not a list or nothing"),
        ({"type": "string", "description": "quote it"}, None, "a[0]: nothing is not a text; quote it"),
        ({"enum": ["cpu", "cuda"]}, "cda", "a[0]: 'cda' is not allowed; did you mean 'cuda'?; choose from cpu, cuda"),
        ({"const": "gguf"}, "x", "a[0]: 'x' is not allowed here, only 'gguf'"),
        ({"minimum": 1}, 0, "a[0]: 0 is out of range, it must be at least 1"),
        ({"exclusiveMinimum": 0}, 0, "a[0]: 0 is out of range, it must be above 0"),
        ({"maximum": 100}, 110, "a[0]: 110 is out of range, it must be at most 100"),
        ({"minItems": 1}, [], "a[0]: must not be empty"),
        ({"uniqueItems": True}, [1, 2, 1], "a[0]: 1 is listed twice"),
        ({"pattern": "^a$", "description": "an a"}, "b", "a[0]: 'b' is not valid; an a"),
        ({"required": ["k"]}, {"id": "x"}, "a[x].k: this key is missing"),
    ],
)
def test_a_broken_rule_is_explained_with_its_place(rule: dict[str, Any], value: Any, message: str) -> None:
    assert explained(inside(rule), {"a": [value]}) == message


def test_an_unknown_key_comes_with_the_closest_and_all_known_ones() -> None:
    schema = {"additionalProperties": False, "properties": {"contexts": {}, "seeds": {}}}
    assert explained(schema, {"contxts": 1}) == (
        "contxts: unknown key; did you mean 'contexts'?; allowed here: contexts, seeds"
    )


@pytest.mark.parametrize(("old", "new"), (RENAMED_KEYS | RENAMED_MODES).items())
def test_an_old_name_comes_with_the_new_one_where_that_is_known(old: str, new: str) -> None:
    schema = {"additionalProperties": False, "properties": {new: {}, "other": {}}}
    assert explained(schema, {old: 1}) == (
        f"{old}: unknown key; `{old}` is called `{new}` now; allowed here: {new}, other"
    )
    assert f"`{old}` is called `{new}` now" in explained({"enum": [new]}, old)
    assert new not in closest(old, ["other"])
