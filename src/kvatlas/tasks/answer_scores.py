"""Scores in [0, 1] of an answer against its references, each as its benchmark defines it.

Knows texts, no models and no tokens. That an answer stands by itself, which needles ask for, is `tasks.scoring`; these
count what their originals count, so that numbers can be held beside published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence


def share_of_values(text: str, answers: Sequence[str]) -> float:
    """Return the share of `answers` that occur in `text`, whatever the case (RULER's `string_match_all`)."""
    shown = text.lower()
    return sum(answer.lower() in shown for answer in answers) / len(answers)


def any_reference(text: str, answers: Sequence[str]) -> float:
    """Return 1 where one of `answers` occurs in `text`, whatever the case, else 0 (RULER's `string_match_part`)."""
    shown = text.lower()
    return float(any(answer.lower() in shown for answer in answers))


METRICS: Mapping[str, Callable[[str, Sequence[str]], float]] = {"all": share_of_values, "contains": any_reference}
"""Metric, as prompts name it -> its score of a text."""
