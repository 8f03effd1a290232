"""The one exception that users are meant to see."""

from __future__ import annotations


class KvatlasError(Exception):
    """A user's mistake or a missing resource, reported in one line that names the key, file or cell and the way out."""
