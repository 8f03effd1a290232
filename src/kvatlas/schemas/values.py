"""What no file of people may hold, whatever its schema says: text that cannot be shown, values without end.

Knows plain values; no schema.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator
from typing import Any

from kvatlas.errors import KvatlasError

MOST_VALUES = 1_000_000
"""Values that a file may hold, those counted again that aliases repeat."""
MOST_DIGITS = 15
_UNSEEN = frozenset({"Cc", "Cs", "Co", "Cn"})  # controls, halves of characters, and what has no appearance
_LINES = "\n\t"


def check_values(document: Any) -> None:
    """Raise KvatlasError that names the key of the first text, number or map that must not be there.

    Texts may have several lines, but no other control characters and no lone surrogates; numbers are finite and of at most
    15 digits, which every reader keeps; nothing holds itself, and aliases do not make a file of millions of values.
    """
    for count, (path, value) in enumerate(_walk(document, (), ())):
        if count > MOST_VALUES:
            raise KvatlasError(f"{_name(path)}: more than {MOST_VALUES:,} values; write fewer, or fewer aliases")
        if isinstance(value, str):
            _check_text(path, value)
        elif isinstance(value, float) and not math.isfinite(value):
            raise KvatlasError(f"{_name(path)}: {value} is no number; write a finite one")
        elif isinstance(value, int) and abs(value) >= 10**MOST_DIGITS:
            raise KvatlasError(f"{_name(path)}: the number has more than {MOST_DIGITS} digits; write a smaller one")


def _walk(value: Any, path: tuple[str, ...], around: tuple[int, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every value with its path, keys as values too."""
    yield path, value
    if not isinstance(value, dict | list):
        return
    if id(value) in around:
        raise KvatlasError(f"{_name(path)}: the value holds itself; remove the alias")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(key, str):
            yield path, key
        yield from _walk(item, (*path, str(key)), (*around, id(value)))


def _check_text(path: tuple[str, ...], text: str) -> None:
    for character in text:
        if unicodedata.category(character) in _UNSEEN and character not in _LINES:
            raise KvatlasError(f"{_name(path)}: the text holds the character U+{ord(character):04X}; remove it")


def _name(path: tuple[str, ...]) -> str:
    return ".".join(step.encode("unicode_escape").decode() for step in path) or "the file"
