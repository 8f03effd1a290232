"""Scoring answers against what is known to be true, by rules that are data.

Case and white space do not count. It knows texts, no models and no tokens.
"""

from __future__ import annotations

import re


def normalise(text: str) -> str:
    """Lower the case and make every run of white space one space."""
    return " ".join(text.lower().split())


def contains_answer(text: str, answer: str) -> bool:
    """Return whether `answer` stands in `text` as it is, not as a part of a longer word or number."""
    pattern = rf"(?<![\w]){re.escape(normalise(answer))}(?![\w])"
    return re.search(pattern, normalise(text)) is not None
