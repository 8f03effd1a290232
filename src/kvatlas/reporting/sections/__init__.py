"""The report's sections, one module and one template per study, found by the study's record.

Sections read results, timings and the study's part of the configuration; they know no Markdown.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol, cast

from kvatlas.errors import KvatlasError
from kvatlas.grid.studies import all_studies
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.tables import Table


class SectionModule(Protocol):
    """What a section's module offers."""

    def context(self, results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
        """Collect what the section's template shows; None when the study was not run."""

    def main_tables(self, results: Record, study_config: Record) -> list[Table]:
        """Build the table that answers the study's question, one per model (and question mode)."""

    def short_tables(self, results: Record) -> list[tuple[str, Table]]:
        """Build what the report's first page shows of the study: headings, each with a table of at most eight columns."""


def load(study: str) -> SectionModule:
    """Import the module of a study's section. Raises KvatlasError for an unknown study."""
    known = all_studies()
    if study not in known:
        raise KvatlasError(f"study '{study}' is unknown; known: {', '.join(known)}")
    return cast(SectionModule, importlib.import_module(f"{__name__}.{study}"))


def contexts(results: Record, timings: Record, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Map each study of a run to what its template shows, in the order of the page; `config` is the resolved one."""
    configured = config.get("studies") or {}
    collected = {name: load(name).context(results, timings, configured.get(name) or {}) for name in all_studies()}
    return {name: context for name, context in collected.items() if context is not None}
