"""What a method of the configuration is: a policy's name and parameters, read from source text and never imported.

Policies import torch; a configuration must be checked without it. So a policy's fields (names, annotations, defaults,
inherited ones included) are read from the syntax trees of its module and of its base classes' modules.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from kvatlas.compression import methods
from kvatlas.errors import KvatlasError
from kvatlas.paths import module_file

FULL = methods.FULL
NO_QUANTIZER = methods.NO_QUANTIZER


@dataclass(frozen=True)
class Field:
    """One parameter of a policy; `annotation` is source text, `default` is None when it is not a literal."""

    name: str
    annotation: str
    default: Any


def policy_of(config: Mapping[str, Any], method: str) -> dict[str, Any]:
    """Return `{"name": policy, **parameters}` of a method id, as a cell's spec holds it."""
    entry = dict(config.get("methods", {}).get(method, {}))
    return {"name": entry.pop("policy", method), **entry}


def base_of(policy: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the policy that `policy` wraps, in the same form; None for those that wrap none."""
    if policy["name"] == FULL or methods.find_policy(policy["name"]).wraps == "":
        return None
    base = policy.get("base") or {"policy": methods.find_policy(policy["name"]).wraps}
    return {"name": base.get("policy", ""), **{key: value for key, value in base.items() if key != "policy"}}


def window_of(policy: Mapping[str, Any]) -> int | None:
    """Return how many queries vote in `policy` (default included), or None for policies without a window."""
    base = base_of(policy)
    if base is not None:
        return window_of(base)
    field = policy_fields(policy["name"]).get("window")
    return None if field is None else int(policy.get("window", field.default))


def reads_queries(policy: Mapping[str, Any]) -> bool:
    """Return whether `policy` reads the statistics of queries. Raises KvatlasError for an unknown policy."""
    base = base_of(policy)
    if base is not None:
        return reads_queries(base)
    return policy["name"] != FULL and methods.find_policy(policy["name"]).queries


def policy_fields(policy: str) -> dict[str, Field]:
    """Return the dataclass fields of a registered policy by name. Raises KvatlasError for an unknown policy."""
    if policy == FULL:
        return {}
    registration = methods.find_policy(policy)
    return dict(_class_fields(registration.module, registration.definition))


def module_of(kind: Literal["policy", "quantizer"], name: str) -> str | None:
    """Return the module that a registered policy or quantizer lives in; None for `full` and `none`.

    Raises KvatlasError for an unknown name.
    """
    if name in (FULL, NO_QUANTIZER):
        return None
    find = methods.find_policy if kind == "policy" else methods.find_quantizer
    return find(name).module


def known_policies() -> list[str]:
    """All registered policies, by name."""
    return sorted(methods.policies())


def known_quantizers() -> list[str]:
    """All registered quantizers, by name, and `none`."""
    return [NO_QUANTIZER, *sorted(methods.quantizers())]


@cache
def _tree(module: str) -> ast.Module:
    path = module_file(module)
    if path is None:
        raise KvatlasError(f"module {module} does not exist in this version")
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _class_fields(module: str, name: str) -> Mapping[str, Field]:
    tree = _tree(module)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            fields: dict[str, Field] = {}
            # The last base comes first in a dataclass's fields, and a class's own fields override all of them.
            for base in reversed(node.bases):
                fields |= _base_fields(module, base)
            return fields | _own_fields(node)
    origin = _imported_from(tree, name)
    return {} if origin is None else _class_fields(*origin)


def _base_fields(module: str, base: ast.expr) -> Mapping[str, Field]:
    return _class_fields(module, base.id) if isinstance(base, ast.Name) else {}


def _imported_from(tree: ast.Module, name: str) -> tuple[str, str] | None:
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module and module_file(node.module) is not None:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return node.module, alias.name
    return None


def _own_fields(node: ast.ClassDef) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation)
            if not annotation.startswith(("ClassVar", "typing.ClassVar")):
                fields[item.target.id] = Field(item.target.id, annotation, _literal(item.value))
    return fields


def _literal(node: ast.expr | None) -> Any:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
