"""Reading a table of the report by the names of its columns."""

from __future__ import annotations

from kvatlas.reporting.tables import Table


def column(table: Table, name: str) -> list[str]:
    """Return the cells of one column, from top to bottom."""
    return [row.cells[table.columns.index(name)] for row in table.rows]
