"""The report's sections, one module and one template per study. A section is one module here, named as its study;
adding the module and `templates/sections/<study>.md.j2` is enough.

Sections read results, timings and the study's part of the configuration; they know no Markdown.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Protocol, cast

from kvatlas.errors import KvatlasError
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.tables import Table


class SectionModule(Protocol):
    """What a section's module offers."""

    TITLE: str  # the study's name in words
    ORDER: int  # its place on the page

    def context(self, results: Record, timings: Record, study_config: Record) -> dict[str, Any] | None:
        """Collect what the section's template shows; None when the study was not run."""

    def main_tables(self, results: Record, study_config: Record) -> list[Table]:
        """Build the table that answers the study's question, one per model (and question mode)."""


def names() -> list[str]:
    """List the studies that have a section, in the order of the page."""
    return sorted((module.name for module in pkgutil.iter_modules(__path__)), key=lambda name: load(name).ORDER)


def load(name: str) -> SectionModule:
    """Import the module of a study's section. Raises KvatlasError for a study without one."""
    studies = sorted(module.name for module in pkgutil.iter_modules(__path__))
    if name not in studies:
        raise KvatlasError(f"study '{name}' has no section; the studies with one are {', '.join(studies)}")
    return cast(SectionModule, importlib.import_module(f"{__name__}.{name}"))


def contexts(results: Record, timings: Record, config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Map each study of a run to what its template shows, in the order of the page; `config` is the resolved one."""
    configured = config.get("studies") or {}
    collected = {name: load(name).context(results, timings, configured.get(name) or {}) for name in names()}
    return {name: context for name, context in collected.items() if context is not None}
