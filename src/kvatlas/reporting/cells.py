"""The page of cells: for every arm the files that its numbers are made of, so that each table can point to them.

Knows the list `cells` of results.json; must not know Markdown or read a cell.
"""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import labels, tables
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.tables import Row, build


def arms(results: Record) -> list[dict[str, Any]]:
    """List the arms of a run, each with its `source` (the anchor that tables point to), name, and table of files."""
    cells_of: dict[str, list[Record]] = {}
    for cell in results.get("cells") or []:
        cells_of.setdefault(tables.source(cell["study"], cell), []).append(cell)
    columns = ("Cell", "Trials", "Checksum of its trials (XXH3, 128 bits)")
    return [
        {
            "source": source,
            "name": f"{cells[0]['study'].replace('_', ' ')}, {labels.model_label(cells[0]['model'])}, {cells[0]['arm']}",
            "files": build(
                columns,
                [Row((cell["path"], labels.fixed(cell["trials"], 0), cell["checksum"])) for cell in cells],
                words=(0, 2),
            ),
        }
        for source, cells in sorted(cells_of.items())
    ]
