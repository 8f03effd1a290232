"""Make untrusted text (a model's output, a user's title) inert in Markdown and HTML: it shows as the text
it is.

It must not know templates or tables. CommonMark never reads structure from a character reference, so
every character that could start markup is written as one; a word joiner after "@", ":" and "www" also
stops readers that link bare addresses.
"""

from __future__ import annotations

import re

from kvatlas.terminal import visible

JOINER = "\u2060"
DEFAULT_LIMIT = 240

_MARKUP = frozenset("\\`*{}[]<>#|~$^&@")
_AT_START = frozenset("-=_")  # list bullets, rulers and underlined headings
_BULLET = re.compile(r"^\+(?=\s|$)")
_LIST_NUMBER = re.compile(r"^(\d+)([.)])(?=\s|$)")


def truncate(text: str, limit: int | None) -> str:
    """Cut `text` after `limit` characters and say how many were left out; None means no limit."""
    if limit is None or len(text) <= limit:
        return text
    return f"{text[:limit]} … (+{len(text) - limit} characters)"


def cell(text: str, limit: int | None = DEFAULT_LIMIT) -> str:
    """Escape `text` for one line of Markdown: a table cell, a list item, a sentence. White space runs
    become one space.
    """
    line = " ".join(visible(truncate(text, limit)).split())
    return _references(line)


def html(text: str, limit: int | None = DEFAULT_LIMIT) -> str:
    """Escape `text` for HTML text and quoted attributes."""
    line = " ".join(visible(truncate(text, limit)).split())
    return "".join(f"&#{ord(c)};" if c in "&<>\"'`={}" else c for c in line)


def fence(text: str, limit: int | None = 4000, language: str = "text") -> str:
    """Put `text` into a code fence that is longer than any run of backticks in it."""
    body = visible(truncate(text, limit), newlines=True)
    longest = max((len(run) for run in re.findall("`+", body)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}{language}\n{body}\n{ticks}"


def _references(line: str) -> str:
    """Write markup characters as decimal character references, those that are markup only at a line's
    start included.
    """
    numbered = _LIST_NUMBER.match(line)
    special = {numbered.end() - 1} if numbered else set()
    if line[:1] in _AT_START or _BULLET.match(line):
        special.add(0)
    out: list[str] = []
    for index, character in enumerate(line):
        before, after = line[index - 1 : index], line[index + 1 : index + 2]
        inside_word = before.isalnum() and after.isalnum()
        linking = (character in "@:" and after not in ("", " ")) or (
            character in "wW" and after == "." and line[max(0, index - 2) : index + 1].lower() == "www"
        )
        markup = character in _MARKUP or index in special or (character == "_" and not inside_word)
        out.append(f"&#{ord(character)};" if markup or (linking and character == ":") else character)
        if linking:
            out.append(JOINER)
    return "".join(out)
