"""Which policies and quantizers exist: a method's file is its registration.

A policy is a class in `compression/policies/` under a `@PolicyRegistration(...)`, a quantizer a function in
`compression/quantizers/` under a `@QuantizerRegistration(...)`; adding the file is enough. Registrations are read from
syntax trees, so that nothing here imports torch or a method, and every argument must be a literal. `base.py` of both
folders is what their methods share.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from kvatlas.compression import policies as policy_package
from kvatlas.compression import quantizers as quantizer_package
from kvatlas.errors import KvatlasError

FULL = "full"
"""The method that compresses nothing."""
NO_QUANTIZER = "none"
"""The quantizer that keeps the model's own numbers."""
UNRANKED = 1000
_SHARED = ("__init__", "base")

Definition = TypeVar("Definition")


@dataclass(frozen=True)
class Registration:
    """The name of a method in configurations, and where it is defined.

    Args:
        name: what a configuration calls it. module, definition, summary: dotted module, class or function, and its
            docstring up to the arguments; filled in by the scan.
    """

    name: str
    module: str = field(default="", kw_only=True)
    definition: str = field(default="", kw_only=True)
    summary: str = field(default="", kw_only=True)

    def __call__(self, definition: Definition) -> Definition:
        """Return the decorated class or function as it is: it is found by its syntax tree."""
        return definition


@dataclass(frozen=True)
class PolicyRegistration(Registration):
    """Register a policy's class; stacked, one class has several names.

    Args:
        label: the name on pages. source: `arXiv NUMBER`, or what else it is, such as `control`.
        queries: it reads the statistics of queries. wraps: the policy that its `base` is by default, "" without one.
        kind: whether slots are dropped or merged. order: its place in tables; new methods follow by name.
    """

    label: str = field(kw_only=True)
    source: str = field(kw_only=True)
    kind: Literal["eviction", "clustering"] = field(default="eviction", kw_only=True)
    queries: bool = field(default=False, kw_only=True)
    wraps: str = field(default="", kw_only=True)
    order: int = field(default=UNRANKED, kw_only=True)


@dataclass(frozen=True)
class QuantizerRegistration(Registration):
    """Register the function that makes a quantizer's store.

    Args:
        bits: of one code. source: `arXiv NUMBER`, or "".
        granularity: `keys per token`, `keys per channel`, or "" for formats without a scale.
    """

    bits: int = field(kw_only=True)
    granularity: Literal["", "keys per token", "keys per channel"] = field(default="", kw_only=True)
    source: str = field(default="", kw_only=True)


def policies() -> Mapping[str, PolicyRegistration]:
    """Return all registered policies by name, in the order of tables. Raises KvatlasError for a bad registration."""
    registrations = _scan(policy_package.__name__, tuple(policy_package.__path__), PolicyRegistration)
    return dict(sorted(registrations.items(), key=lambda item: (item[1].order, item[0])))


def quantizers() -> Mapping[str, QuantizerRegistration]:
    """Return all registered quantizers by name. Raises KvatlasError for a bad registration."""
    return _scan(quantizer_package.__name__, tuple(quantizer_package.__path__), QuantizerRegistration)


def find_policy(name: str) -> PolicyRegistration:
    """Return the registration of a policy. Raises KvatlasError for an unknown name."""
    return _find(policies(), name, "policy")


def find_quantizer(name: str) -> QuantizerRegistration:
    """Return the registration of a quantizer. Raises KvatlasError for an unknown name."""
    return _find(quantizers(), name, "quantizer")


def split_variant(method: str) -> tuple[str, str]:
    """Split a method's name in a configuration into policy and variant: "h2o_raw" -> ("h2o", "raw"); a name that begins
    with no policy is all policy.
    """
    known = {FULL, *policies()}
    if method in known:
        return method, ""
    for policy in sorted(known, key=len, reverse=True):
        if method.startswith(f"{policy}_"):
            return policy, method[len(policy) + 1 :]
    return method, ""


R = TypeVar("R", bound=Registration)


def _find(registrations: Mapping[str, R], name: str, kind: str) -> R:
    if name not in registrations:
        raise KvatlasError(f"{kind}: '{name}' is unknown; use one of {', '.join(sorted(registrations))}")
    return registrations[name]


@cache
def _scan(package: str, folders: tuple[str, ...], form: type[R]) -> dict[str, R]:
    files = (path for folder in folders for path in sorted(Path(folder).glob("*.py")) if path.stem not in _SHARED)
    registrations: dict[str, R] = {}
    for path in files:
        in_file = list(_registrations(path, f"{package}.{path.stem}", form))
        if not in_file:
            raise KvatlasError(f"{path}: registers nothing; put @{form.__name__}(...) over its definition")
        for registration in in_file:
            other = registrations.setdefault(registration.name, registration)
            if other is not registration or registration.name in (FULL, NO_QUANTIZER):
                where = "kvatlas itself" if other is registration else other.module
                raise KvatlasError(f"{path}: '{registration.name}' is registered by {where} too; choose another name")
    return registrations


def _registrations(path: Path, module: str, form: type[R]) -> Iterator[R]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise KvatlasError(f"{path}: not valid Python: {error}; correct or remove the file") from error
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == form.__name__:
                registration = _evaluated(path, decorator, form)
                yield replace(registration, module=module, definition=node.name, summary=_summary(node))


def _evaluated(path: Path, call: ast.Call, form: type[R]) -> R:
    try:
        positional = [ast.literal_eval(argument) for argument in call.args]
        named: dict[str, Any] = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        return form(*positional, **named)
    except (TypeError, ValueError) as error:
        what = f"{form.__name__} in line {call.lineno}"
        raise KvatlasError(f"{path}: {what} needs literal arguments that it knows: {error}") from error


def _summary(node: ast.ClassDef | ast.FunctionDef) -> str:
    text = ast.get_docstring(node) or ""
    return " ".join(text.partition("\nArgs:")[0].split())
