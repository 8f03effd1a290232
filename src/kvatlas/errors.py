"""The one exception that users are meant to see."""

from __future__ import annotations

from kvatlas.terminal import one_line


class KvatlasError(Exception):
    """A user's mistake or a missing resource, reported in one line that names the key, file or cell and the way out.

    The line is fit for a terminal, whatever the names in it hold.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))
