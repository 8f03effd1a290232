"""Every study's section: there exactly when the study was run, with its template, tables that keep their columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.grid.studies import all_studies
from kvatlas.reporting import environment, render, sections
from kvatlas.reporting.tables import Table

ORDER = sorted(all_studies(), key=lambda name: all_studies()[name].order)


def tables_in(value: Any) -> Iterator[Table]:
    """Yield the tables of a section's context, at any depth."""
    if isinstance(value, Table):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tables_in(item)


def test_sections_stand_in_the_page_s_order() -> None:
    assert list(all_studies()) == ORDER
    with pytest.raises(KvatlasError, match="study 'radar' is unknown; known: needle"):
        sections.load("radar")


def test_a_run_has_the_sections_of_its_studies(results: dict[str, Any]) -> None:
    assert list(sections.contexts(results, {}, {})) == ORDER
    last_first = [ORDER[-1], ORDER[0]]
    partial = {"studies": {name: results["studies"][name] for name in last_first}, "claims": []}
    assert list(sections.contexts(partial, {}, {})) == [ORDER[0], ORDER[-1]]
    assert sections.contexts({"studies": {}}, {}, {}) == {}


@pytest.mark.parametrize("name", all_studies())
def test_a_section_renders_with_tables_that_keep_their_columns(name: str, results: dict[str, Any]) -> None:
    context = sections.load(name).context(results, {}, {})
    assert context is not None
    page = render.render_section(environment.markdown(), name, context)
    assert page.strip()
    assert page.endswith("\n")
    tables: list[set[int]] = []
    before = ""
    for line in page.splitlines():
        if line.startswith("|"):
            if not before.startswith("|"):
                tables.append(set())
            tables[-1].add(line.count("|"))
        before = line
    assert tables
    assert all(len(widths) == 1 for widths in tables)


@pytest.mark.parametrize("name", all_studies())
def test_the_main_tables_are_those_of_the_page(name: str, results: dict[str, Any]) -> None:
    module = sections.load(name)
    context = module.context(results, {}, {})
    shown = list(tables_in(context))
    main = module.main_tables(results, {})
    assert main
    assert all(table and table in shown for table in main)
    assert not any(module.main_tables({"studies": {}}, {}))
