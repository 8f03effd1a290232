"""A table as text, and what the tables of all studies share: how an arm and a difference are spelled in cells.

It must not know Markdown, HTML or where the numbers came from; templates turn a Table into a page and escape its
cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvatlas.reporting import labels
from kvatlas.reporting.study_rows import Record


@dataclass(frozen=True)
class Row:
    """One line of a table; a muted line is shown, but its numbers enter no comparison.

    `source` is the anchor on the page of cells that lists what the line was made from.
    """

    cells: tuple[str, ...]
    muted: bool = False
    source: str = ""


@dataclass(frozen=True)
class Table:
    """A table as text: names of the columns, which of them hold numbers (aligned right), and the lines."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    numeric: frozenset[int] = field(default_factory=frozenset)

    def __bool__(self) -> bool:
        """A table without lines is not shown."""
        return bool(self.rows)


def build(columns: Sequence[str], rows: Iterable[Row], *, words: Iterable[int] = (0,)) -> Table:
    """Make a table whose columns are numbers, except those listed in `words`."""
    text = frozenset(words)
    lines = tuple(rows)
    return Table(tuple(columns), lines, frozenset(column for column in range(len(columns)) if column not in text))


def source(study: str, row: Record) -> str:
    """Return the anchor on the page of cells under which the cells of an arm are listed."""
    return f"{study}-{row['model']}-{row['arm']}"


def named(row: Record) -> tuple[str, str]:
    """Spell an arm in two cells: method (with its quantizer), budget."""
    bare = {**row, "budget": "none", "protection": "base"}
    name = labels.arm_label({**bare, "arm": ""}) if row["budget"] != "none" else labels.arm_label(row)
    return name, labels.budget_label(str(row["budget"])) + labels.protection_suffix(row)


def muted(row: Record) -> bool:
    """Return whether the row's task failed its gate."""
    return row.get("gate_passed") is False


def points(difference: Any) -> str:
    """Spell a difference of two shares in percentage points, with its sign."""
    return labels.signed(scaled(difference, 100), 1)


def ppl_ratio(nll_difference: Any) -> str:
    """Spell a difference of mean NLLs (nats) as the ratio of the two perplexities."""
    return labels.times(exp(nll_difference))


def scaled(value: Any, factor: float) -> float | None:
    """Multiply a number; what is missing stays missing."""
    return value * factor if labels.known(value) else None


def exp(value: Any) -> float | None:
    """Exponentiate a number; what is missing or beyond a float is missing."""
    return math.exp(value) if labels.known(value) and value < 700 else None
