"""Scores in [0, 1] of an answer against its references, each as its benchmark defines it.

Knows texts, no models and no tokens. That an answer stands by itself, which needles ask for, is `tasks.scoring`; these
count what their originals count, so that numbers can be held beside published ones.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence


def share_of_values(text: str, answers: Sequence[str]) -> float:
    """Return the share of `answers` that occur in `text`, whatever the case (RULER's `string_match_all`)."""
    shown = text.lower()
    return sum(answer.lower() in shown for answer in answers) / len(answers)


def any_reference(text: str, answers: Sequence[str]) -> float:
    """Return 1 where one of `answers` occurs in `text`, whatever the case, else 0 (RULER's `string_match_part`)."""
    shown = text.lower()
    return float(any(answer.lower() in shown for answer in answers))


def exact(text: str, answers: Sequence[str]) -> float:
    """Return 1 where the text is one of `answers`, but for what SQuAD's evaluation does not count, else 0."""
    return float(any(_normalised(text) == _normalised(answer) for answer in answers))


def f1(text: str, answers: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of words against the best of `answers` (SQuAD 1606.05250)."""
    return max(_f1(_normalised(text).split(), _normalised(answer).split()) for answer in answers)


def choice(text: str, answers: Sequence[str]) -> float:
    """Return 1 where the first capital letter that stands alone in the text is one of `answers`, else 0."""
    found = re.search(r"(?<!\w)[A-Z](?!\w)", text)
    return float(found is not None and found[0] in answers)


def last_number(text: str, answers: Sequence[str]) -> float:
    """Return 1 where the last whole number of the text is one of `answers`, thousands set off or not, else 0."""
    found = re.findall(r"\d[\d,]*", text)
    return float(bool(found) and found[-1].replace(",", "") in answers)


def _normalised(text: str) -> str:
    """As SQuAD's evaluation: lower case, without punctuation and articles, white space collapsed."""
    bare = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def _f1(found: Sequence[str], wanted: Sequence[str]) -> float:
    if not found or not wanted:
        return float(list(found) == list(wanted))
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted))


METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {
    "all": share_of_values,
    "contains": any_reference,
    "exact": exact,
    "f1": f1,
    "choice": choice,
    "last_number": last_number,
}
"""Metric, as prompts name it -> its score of a text."""
