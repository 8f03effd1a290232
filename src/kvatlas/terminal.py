"""Text on its way to a terminal or a log: every character visible, logins left out.

Names and messages come from model folders, hubs and other people's files. What they hold must not move the cursor, change
colours or hide. Knows no command, no page and nothing else of this package.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast
from urllib.parse import quote

NEWLINE_MARK = "⏎"
HIDDEN = "[token]"
LONGEST_MESSAGE = 4000

_NEWLINES = re.compile("\r\n|[\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029]")
# Cc and Cf hold control, zero-width and text-direction characters; Cs, Co and Cn have no fixed appearance.
_INVISIBLE = {"Cc", "Cf", "Cs", "Co", "Cn"}
# Letters and marks that draw nothing: joiners, fillers, and the variation selectors that no emoji uses.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0d\uffa0\U000e0100-\U000e01ef]")
# How progress bars begin a write: back to the start of their line, or up by lines.
_CURSOR = re.compile("\r|\n*(?:\x1b\\[A)+$")
_TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_TOKEN = re.compile(r"\bhf_(?:oauth_[\w.-]{20,}|[A-Za-z0-9]{30,})")
_SHORTEST_TOKEN = 8
_TOKENS: set[str] = set()


def visible(text: str, *, newlines: bool = False) -> str:
    """Replace characters that have no appearance by their code point, e.g. U+202E in angle brackets.

    Line ends become "\\n" with `newlines`, else a return mark on the same line.
    """
    if text.isprintable() and not _BLANK.search(text):
        return text
    lines = _NEWLINES.split(text)
    shown = ("".join(map(_visible_character, line.replace("\t", "    "))) for line in lines)
    return ("\n" if newlines else f" {NEWLINE_MARK} ").join(shown)


def _visible_character(character: str) -> str:
    if unicodedata.category(character) in _INVISIBLE or _BLANK.match(character):
        return f"⟨U+{ord(character):04X}⟩"
    return character


def one_line(message: str) -> str:
    """Return a message as one visible line without logins; of a very long one the middle is left out."""
    line = visible(redacted(message))
    left_out = len(line) - LONGEST_MESSAGE
    if left_out <= 0:
        return line
    # The way out stands at the end.
    half = LONGEST_MESSAGE // 2
    return f"{line[:half]} … (+{left_out} characters) … {line[-half:]}"


def hide(token: str) -> None:
    """Leave this login out of everything that is written from now on."""
    _TOKENS.add(token)


def redacted(text: str) -> str:
    """Replace the logins of this process, and what looks like a token of the Hub."""
    known = _TOKENS | {os.environ.get(name, "").strip() for name in _TOKEN_VARIABLES}
    for token in sorted((token for token in known if len(token) >= _SHORTEST_TOKEN), key=len, reverse=True):
        # A message may quote an address.
        for form in (token, quote(token, safe="", errors="replace")):
            text = text.replace(form, HIDDEN)
    return _TOKEN.sub(HIDDEN, text)


class _Visible:
    """A text stream whose writes are visible characters and line ends; all else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        cursor = _CURSOR.match(text)
        start = cursor[0] if cursor else ""
        shown = start + visible(redacted(text[len(start) :]), newlines=True)
        encoding = getattr(self.stream, "encoding", None) or "utf-8"
        self.stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def install() -> None:
    """Make everything that this process prints visible, tracebacks and library messages included."""
    sys.stdout, sys.stderr = _wrapped(sys.stdout), _wrapped(sys.stderr)


def _wrapped(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, _Visible) else cast(TextIO, _Visible(stream))


@contextmanager
def visible_output() -> Iterator[None]:
    """Make what is printed in the block visible."""
    before = sys.stdout, sys.stderr
    install()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
