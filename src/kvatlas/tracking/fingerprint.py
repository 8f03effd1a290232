"""Fingerprints of code: which of our source files a job's numbers depend on, and a hash of what they mean.

A fingerprint covers the first-party import closure of some modules, read from syntax trees: comments, docstrings,
formatting and the package's version do not count. Dynamic imports are not seen, so the caller names an arm's policy and
quantizer modules itself. Data files (templates, tables) are hashed by their bytes. Nothing is imported or executed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.paths import SOURCE_ROOT, module_file, named_file, source_name

PACKAGE = "kvatlas"
IGNORED_NAMES = frozenset({"__version__"})
# What a method's registration says of it on pages; `shown_names` in `dependencies` follows it there.
REGISTRATION, DESCRIPTIVE_WORDS = "Registration", frozenset({"label", "source", "kind", "order"})
# Packages whose version can change a number of a cell, a table or a picture.
MODEL_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
TABLE_PACKAGES = ("numpy", "scipy")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

Explanation = dict[str, str]


def explain(
    modules: Iterable[str],
    data: Iterable[str] = (),
    packages: Iterable[str] = (),
    *,
    notes: Mapping[str, str] | None = None,
    follow: bool = True,
    root: Path = SOURCE_ROOT,
) -> Explanation:
    """Return what a fingerprint is made of: file, `package NAME` or note -> hash or version.

    `modules` are the dotted names to start from (without `follow`, their imports do not count), `data` files by
    the repository's names, `packages` distributions whose version counts, `notes` any other text. Raises KvatlasError for a
    module or file that does not exist.
    """
    parts: Explanation = {}
    names = tuple(sorted(set(modules)))
    for module in closure(names, root) if follow else names:
        path = module_file(module, root)
        if path is not None:
            parts[source_name(path, root)] = _code_hash(path)
    for name in data:
        path = named_file(name, root)
        if not path.is_file():
            raise KvatlasError(f"{name}: no such file; run kvatlas in the repository, or restore it from there")
        parts[name] = _digest(path.read_bytes())
    parts |= {f"package {name}": version(name) for name in packages}
    return parts | dict(notes or {})


def combine(parts: Mapping[str, str]) -> str:
    """Return the fingerprint of an explanation, 16 hexadecimal digits."""
    return _digest("\n".join(f"{name}={parts[name]}" for name in sorted(parts)).encode())


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Return, in words, which parts of two explanations differ."""
    lines = []
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            verb = "is new" if name not in old else "is no longer used" if name not in new else "changed"
            values = f" ({old[name]} -> {new[name]})" if name.startswith("package ") and verb == "changed" else ""
            lines.append(f"{name} {verb}{values}")
    return lines


@cache
def version(package: str) -> str:
    """Return the installed version of a distribution, or `absent`."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "absent"


@cache
def closure(modules: tuple[str, ...], root: Path = SOURCE_ROOT) -> tuple[str, ...]:
    """Return the first-party modules that `modules` import, directly or not, themselves and their packages included."""
    modules_seen: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module in modules_seen:
            continue
        path = module_file(module, root)
        if path is None:
            raise KvatlasError(f"module {module} does not exist in this version of {PACKAGE}")
        modules_seen.add(module)
        waiting += _imports(module, path, root)
    return tuple(sorted(modules_seen))


@cache
def _imports(module: str, path: Path, root: Path) -> tuple[str, ...]:
    """Modules that a file imports anywhere in it, and the packages that hold them: importing runs their files too."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names: set[str] = {module.rpartition(".")[0]}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, package)
            names.add(base)
            # `from package import name`: the name may be a module of its own.
            names |= {f"{base}.{alias.name}" for alias in node.names}
    return tuple(sorted(name for name in names if _is_ours(name) and module_file(name, root) is not None))


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _code_hash(path: Path) -> str:
    return _digest(_canonical(_tree(path)).encode())


def _canonical(node: object) -> str:
    """Spell a syntax tree: no positions, no docstrings, no empty fields, so that it is equal across Python versions."""
    if isinstance(node, list):
        return f"[{','.join(_canonical(item) for item in node)}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name in sorted(node._fields):
        value: Any = getattr(node, name, None)
        if name == "body" and isinstance(node, _DOCUMENTED):
            value = _without_docstring(value)
        if name == "keywords" and _is_registration(node):
            value = [word for word in value if word.arg not in DESCRIPTIVE_WORDS]
        if isinstance(node, ast.Module) and name == "body":
            value = [item for item in value if not _is_ignored(item)]
        if value is not None and value != []:
            fields.append(f"{name}={_canonical(value)}")
    return f"{type(node).__name__}({','.join(fields)})"


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0] if body else None
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return body[1:] if is_text else body


def _is_registration(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith(REGISTRATION)


def _is_ignored(item: ast.stmt) -> bool:
    targets = item.targets if isinstance(item, ast.Assign) else [item.target] if isinstance(item, ast.AnnAssign) else []
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return bool(names) and names <= IGNORED_NAMES


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
