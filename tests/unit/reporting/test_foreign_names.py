"""Names of a foreign results.json and configuration are text on every page: they open no tag, link, span or row."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.grid import config as configurations
from kvatlas.paths import PAGES
from kvatlas.pipeline.workflow import Workflow
from kvatlas.reporting import render
from kvatlas.reporting.hub import cards
from tests.support.places import REPORTS, ROOT

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "](javascript:alert(1)) [x",
    "`</a>`<b>",
    "a | b |\n| c",
    "{{ 7 * 7 }}{% raw %}",
    "\u202egnp.exe\u200b",
    "-->\n# Heading",
)
TAGS = re.compile(r"<(?!/?(a|details|summary|sub|sup|br)\b)[a-zA-Z/!]")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The committed report, its names replaced by all hostile texts in one."""
    folder = tmp_path_factory.mktemp("foreign") / "report"
    shutil.copytree(ROOT / "reports/embedded", folder)
    evil = " ".join(HOSTILE)
    results, config = (json.loads((folder / f"{name}.json").read_text()) for name in ("results", "config"))
    arms = {cell["arm"] for cell in results["cells"] if not cell["arm"].startswith("full")}
    renamed = {name: f"{name} {evil}" for name in {*arms, *config["config"]["models"]}}
    results, config = (_renamed(value, renamed) for value in (results, config))
    results["run"] = config["run"] = config["config"]["title"] = evil
    for cell in results["cells"]:
        cell["path"] = cell["checksum"] = evil
    for claim in results["claims"]:
        claim["sentence"] = evil
    config["packages"][evil] = config["hardware"][evil] = evil
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "config.json").write_text(json.dumps(config))
    render.write_pages(folder)
    return folder


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Rename arms and models wherever they stand in nested values, keys included."""
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    return names.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("page", [*(name for name in PAGES if name != "model-card.md"), "needle.md", "task-suite.md"])
def test_no_name_opens_a_tag_or_a_link(report: Path, page: str) -> None:
    text = (report / page).read_text()
    text = text.removeprefix("---\n").partition("\n---\n")[2] or text  # front matter is data
    assert "alert" in text or page in ("samples.md", "published.md")
    assert [match[0] for match in TAGS.finditer(text) if "data:image" not in match[0]] == []
    assert not re.search(r"\]\(\s*javascript:", text)
    assert "{{ 7" not in text
    assert "\u202e" not in text
    assert "\u200b" not in text


@pytest.mark.parametrize("name", ["foreign", *(path.name for path in REPORTS)])
def test_every_link_to_a_cell_has_its_anchor(report: Path, name: str) -> None:
    report = report if name == "foreign" else ROOT / "reports" / name
    anchors = set(re.findall(r'<a id="([^"]+)"></a>', (report / "cells.md").read_text()))
    linked = set(re.findall(r"\]\(cells\.md#([^)]+-[^)]+)\)", (report / "needle.md").read_text()))
    assert linked
    assert linked <= anchors


def test_front_matter_is_visible_and_reads_back() -> None:
    front: dict[str, Any] = {"title": "a\u202eb\u200bc\ue000d\U000e0041", "tags": ["\u2066x"], "\ufeffkey": 1}
    text = cards.dump(front)
    assert text.replace("\n", "").isprintable()
    assert yaml.safe_load(text.strip("-\n"))["title"] == "a⟨U+202E⟩b⟨U+200B⟩c⟨U+E000⟩d⟨U+E0041⟩"


def test_no_title_ends_a_script_that_holds_the_spec_of_a_job() -> None:
    loaded = configurations.load(ROOT / "config/smoke.yaml", root=ROOT) | {
        "title": "</script><script>alert(1)</script>"
    }
    spec = Workflow(loaded).results_spec()
    assert "<" not in spec
    assert json.loads(spec)["title"] == loaded["title"]
