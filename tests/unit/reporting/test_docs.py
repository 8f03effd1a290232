"""The documentation says what the code is: made pages are current, names are complete, links lead somewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.compression.methods import policies, quantizers
from kvatlas.errors import KvatlasError
from kvatlas.grid import config
from kvatlas.grid.studies import online_lm, task_suite
from kvatlas.reporting.docs import configuration_page
from kvatlas.reporting.methods_page import methods_page, write_methods
from tests.support.places import ROOT

SCHEMA: dict[str, Any] = config.schema()
PAGES = sorted(["README.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_page_on_the_configuration_is_what_the_schema_says_now() -> None:
    assert page("docs/configuration.md") == configuration_page(SCHEMA), "run `kvatlas docs`"


def keys(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for key, entry in part.get("properties", {}).items():
        yield key, entry
        yield from keys(entry)
    for value in part.get("$defs", {}).values():
        yield from keys(value)


def test_every_key_of_the_schema_is_described_on_the_page() -> None:
    text = page("docs/configuration.md")
    rows = dict(re.findall(r"^\| \*{0,2}`(\w+)`\*{0,2} \|.*\| ([^|]*) \|$", text, flags=re.M))
    for key, _ in keys(SCHEMA):
        assert key in SCHEMA["properties"]["studies"]["properties"] or key == "policy" or rows.get(key, "").strip(), key


def test_a_change_of_the_schema_changes_the_page() -> None:
    changed = json.loads(json.dumps(SCHEMA))
    needle = changed["properties"]["studies"]["properties"]["needle"]["properties"]
    needle["patience"] = {"type": "integer", "minimum": 3, "description": "a | b <c>"}
    assert "| `patience` | whole number from 3 |  | a \\| b &lt;c&gt; |" in configuration_page(changed)
    needle["patience"] = {"$ref": "#/$defs/nothing"}
    with pytest.raises(KvatlasError, match="nothing, which"):
        configuration_page(changed)


def test_the_defaults_of_the_schema_are_those_of_the_code() -> None:
    described = SCHEMA["properties"]["studies"]["properties"]
    assert described["online_lm"]["properties"]["block"]["default"] == online_lm.DEFAULT_BLOCK
    assert described["task_suite"]["properties"]["block"]["default"] == task_suite.DEFAULT_BLOCK
    assert described["task_suite"]["properties"]["schedule"]["default"] == task_suite.DEFAULT_SCHEDULE


def test_the_page_on_methods_is_what_the_registrations_say_now() -> None:
    assert page("docs/methods.md") == methods_page(page("docs/methods.md")), "run `kvatlas docs`"


@pytest.mark.parametrize(("heading", "registered"), [("policy", policies()), ("quantizer", quantizers())])
def test_the_page_on_methods_describes_every_registered_name_and_no_other(
    heading: str, registered: dict[str, Any]
) -> None:
    blocks = re.findall(rf"^\| {heading} \|.*\n\|[ |:-]+\n((?:\|.*\n)+)", page("docs/methods.md"), flags=re.M)
    described = [
        name for block in blocks for row in block.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(described) == sorted(registered)


def test_a_table_without_its_marks_is_an_error_that_names_it(tmp_path: Path) -> None:
    text = page("docs/methods.md")
    with pytest.raises(KvatlasError, match="table 'clustering' is not between its marks"):
        methods_page(text.replace("<!-- end clustering -->", ""))
    with pytest.raises(KvatlasError, match="no such file"):
        write_methods(tmp_path / "absent.md")
    copy = tmp_path / "methods.md"
    copy.write_text(text.replace("| `snapkv` | SnapKV |", "| `snapkv` | outdated |"))
    write_methods(copy)
    assert copy.read_text() == text


@pytest.mark.parametrize("name", PAGES)
def test_links_of_the_documentation_lead_to_files(name: str) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page(name)):
        if not target.startswith("https://"):
            assert (ROOT / name).parent.joinpath(target).exists(), target


def test_the_readme_has_the_two_commands_and_ci_runs_the_second_one() -> None:
    readme = page("README.md")
    assert "\npip install -c constraints.txt -e . && snakemake --cores all\n" in readme
    assert "\npip install -c constraints.txt -e '.[test]' && pytest\n" in readme
    script = page(".ci/run")
    assert "pip install --quiet --progress-bar off -c constraints.txt -e '.[test]'" in script
    assert re.search(r"^step 'pytest' pytest$", script, flags=re.M)


def test_there_is_a_reason_for_every_dependency() -> None:
    import tomllib

    dependencies = tomllib.loads(page("pyproject.toml"))["project"]["dependencies"]
    rows = re.findall(r"^\| ([^|]+) \|", page("docs/dependencies.md"), flags=re.M)
    named = {name for row in rows for name in row.split(", ")}
    wanted = {re.split(r"[>=]", dependency)[0].replace("_", "-") for dependency in dependencies}
    assert {name.replace("_", "-") for name in named} - {"package", "---"} == wanted


def test_the_readme_is_one_that_people_read() -> None:
    assert len(page("README.md").splitlines()) <= 220


def test_the_citation_names_this_version() -> None:
    from kvatlas import __version__

    citation = yaml.safe_load(page("CITATION.cff"))
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    assert page("LICENSE").strip().startswith("Apache License\n                           Version 2.0")
