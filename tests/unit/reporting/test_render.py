"""Pages: pure functions of the report folder, chosen by verdicts, valid as a card, safe against what
models write.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jinja2 import UndefinedError
from markdown_it import MarkdownIt
from markupsafe import Markup

from kvatlas.analysis.studies import needle
from kvatlas.analysis.trials import write_parquet
from kvatlas.errors import KvatlasError
from kvatlas.paths import PAGES
from kvatlas.reporting import environment, escape, recall_tables, render
from kvatlas.reporting.hub import cards
from kvatlas.terminal import visible
from tests.support import synthetic
from tests.support.places import ROOT

MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")
CONFIG: dict[str, Any] = {
    "run": "synthetic",
    "config": {
        "title": "Needles on a small model",
        "studies": {"needle": {"n_sinks": 4, "n_recent": 32, "new_tokens": 24}},
    },
    "models": {"smollm2-135m": {"source": "wheel", "sha256": "ab" * 32}},
    "packages": {"torch": "2.13.0"},
    "hardware": {"cores": 2},
    "rope_telemetry": [{"model": "smollm2-135m", "max_relative_error": 1.2e-6}],
}
TRIALS = synthetic.recall_trials(seeds=2)
RESULTS = synthetic.results_json(TRIALS, claims_file=ROOT / "config/claims.yaml", published=ROOT / "config/published")


def write_report(folder: Path, results: Any = RESULTS, trials: Any = TRIALS, config: Any = CONFIG) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    speed = {
        "study": "needle",
        "model": "smollm2-135m",
        "mode": "aware",
        "arm": "full",
        "decode_tokens_per_s": 16.2,
    }
    for name, value in (("results", results), ("config", config), ("timings", {"rows": [speed]})):
        (folder / f"{name}.json").write_text(json.dumps(value))
    write_parquet(trials, folder / "trials.parquet")
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_report(tmp_path_factory.mktemp("report"))
    render.write_pages(folder)
    return folder


@pytest.fixture(scope="module")
def readme(report: Path) -> str:
    return (report / "README.md").read_text()


def body(page: str) -> str:
    return page.split("\n---\n", 1)[1]


def test_the_pages_are_a_pure_function_of_four_files(report: Path, tmp_path: Path) -> None:
    for name in ("results.json", "timings.json", "trials.parquet", "config.json"):
        shutil.copy(report / name, tmp_path / name)
    written = render.write_pages(tmp_path)
    assert [path.name for path in written] == [*PAGES, "needle.md"]
    for path in written:
        assert path.read_bytes() == (report / path.name).read_bytes()


def test_the_readme_is_a_valid_dataset_card(report: Path, readme: str) -> None:
    front = cards.validate(readme, report, rows=len(TRIALS))
    assert front["pretty_name"] == "Needles on a small model"
    assert front["configs"] == [
        {
            "config_name": "trials",
            "data_files": [{"split": "test", "path": "trials.parquet"}],
            "default": True,
        }
    ]


def test_the_readme_goes_from_the_question_to_the_provenance(readme: str) -> None:
    heads = re.findall(r"^## (.+)$", readme, flags=re.M)
    assert heads == [
        "What this run found",
        "Which method at this ratio?",
        "Needle in a haystack",
        "Claims",
        "Published against reproduced",
        "Limits",
        "Data",
        "Provenance",
    ]


@pytest.fixture(scope="module")
def study(report: Path) -> str:
    return (report / "needle.md").read_text()


def test_a_study_s_page_goes_from_the_design_to_the_figures(study: str) -> None:
    assert re.findall(r"^## (.+)$", study, flags=re.M) == [
        "Design",
        "Which method at this ratio?",
        "Results",
        "Claims",
        "Ranges",
        "Recall by needle depth",
        "Paired differences",
        "Needle kept, needle found",
        "Figures",
    ]


@pytest.mark.parametrize("name", ["README.md", "claims.md", "published.md", "needle.md", "cells.md"])
def test_every_table_keeps_its_columns(report: Path, name: str) -> None:
    page = (report / name).read_text()
    text = body(page) if page.startswith("---\n") else page
    tokens = MARKDOWN.parse(text)
    tables = [token for token in tokens if token.type == "table_open"]
    assert tables
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == len([token for token in tokens if token.type == "tr_open"]) + len(tables)
    assert not [token for token in tokens if token.type == "code_block"]


def test_the_main_table_of_a_study_s_page_is_the_table_of_the_results(study: str) -> None:
    table = recall_tables.summary(RESULTS, {"rows": []}, "needle", "smollm2-135m", "agnostic")
    for row in table.rows:
        name, *cells = (escape.cell(cell) for cell in row.cells)
        assert f"| [{name}](cells.md#{row.source}) | {' | '.join(cells)} |" in study


def test_tables_of_the_first_page_have_eight_columns_at_most(readme: str) -> None:
    assert max(line.count("|") - 1 for line in readme.splitlines() if line.startswith("| ")) <= 8


def verdict(name: str) -> Callable[[dict[str, Any]], None]:
    def change(claim: dict[str, Any]) -> None:
        claim["verdict"] = name

    return change


@pytest.mark.parametrize(
    ("name", "lead"),
    [
        ("supported", "**Supported.** {}"),
        ("contradicted", "**Contradicted.** The claim was: {}"),
        ("not resolved", "**Not resolved.** The claim is: {}"),
        ("not run", "**Not run.** {}"),
    ],
)
def test_the_analysis_says_what_the_verdict_says(tmp_path: Path, name: str, lead: str) -> None:
    results = copy.deepcopy(RESULTS)
    claim = next(claim for claim in results["claims"] if claim["id"] == "snapkv-beats-h2o")
    claim["verdict"] = name
    write_report(tmp_path, results)
    render.write_pages(tmp_path)
    page = (tmp_path / "needle.md").read_text()
    sentence = escape.cell(claim["sentence"], None)
    said = [line for line in page.splitlines() if line.startswith("- **") and sentence in line]
    assert len(said) == 1
    assert said[0].startswith("- " + lead.format(sentence))


def test_a_small_run_calls_itself_descriptive_and_a_large_one_does_not(readme: str, tmp_path: Path) -> None:
    assert "**Part of this run is small.**" in readme
    assert "question-aware 4." in readme
    trials = synthetic.recall_trials(seeds=10, arms=synthetic.ARMS[:5], contexts=(512,), modes=("aware",))
    large = {
        "schema": 1,
        "run": "r",
        "studies": {"needle": needle.aggregate(trials)},
        "claims": [],
        "published": [],
    }
    write_report(tmp_path, large, trials)
    render.write_pages(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "run is small" not in page
    assert "question-aware 10." in page
    assert "No claim was tested" in page


def test_a_run_without_the_needle_study_still_has_its_pages(tmp_path: Path) -> None:
    results = {
        "schema": 1,
        "run": "bare",
        "studies": {},
        "claims": RESULTS["claims"],
        "published": RESULTS["published"],
    }
    write_report(tmp_path, results, [], {"run": "bare", "config": {}, "models": {}, "packages": {}, "hardware": {}})
    render.write_pages(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "No study of this run has a section." in page
    assert "figures/" not in page
    assert "no trials with generated text" in (tmp_path / "samples.md").read_text()


def test_a_study_without_rows_has_a_page_that_says_so(tmp_path: Path) -> None:
    results = copy.deepcopy(RESULTS)
    results["studies"]["online_lm"] = {"rows": []}
    write_report(tmp_path, results)
    assert tmp_path / "online-lm.md" in render.write_pages(tmp_path)
    assert render.NO_ROWS in (tmp_path / "online-lm.md").read_text()


@pytest.mark.parametrize("section", ["by_depth", "contrasts", "retention", "gates", "noise_floor", "grid"])
def test_a_missing_section_leaves_the_rest_of_the_page(tmp_path: Path, section: str) -> None:
    results = copy.deepcopy(RESULTS)
    results["studies"]["needle"][section] = None
    write_report(tmp_path, results)
    render.write_pages(tmp_path)
    assert "## Provenance" in (tmp_path / "README.md").read_text()


def test_a_task_past_no_gate_is_shown_in_italics_with_the_reason(tmp_path: Path) -> None:
    results = copy.deepcopy(RESULTS)
    study = results["studies"]["needle"]
    for row in [*study["rows"], *study["gates"]]:
        if row["mode"] == "aware":
            row.update(gate_passed=False, passed=False, reason="the full cache recalls 41.0%")
    write_report(tmp_path, results)
    render.write_pages(tmp_path)
    assert "*shown, not compared* | *the full cache recalls 41.0%*" in (tmp_path / "claims.md").read_text()
    assert "| *[SnapKV](cells.md#needle-smollm2-135m-snapkv-4x)* | *4x* |" in (tmp_path / "needle.md").read_text()
    assert re.search(r"^\| \*SnapKV 4x\* \|.*\| \*not compared\* \|", (tmp_path / "README.md").read_text(), flags=re.M)


def test_figures_have_alt_text_and_a_caption(study: str) -> None:
    shown = re.findall(r"^!\[(.+)\]\(figures/(f\d+_\w+)\.png\)\n\n\*\*.+\*\* .+\.svg\)\)$", study, flags=re.M)
    assert [name for _, name in shown] == [
        "f1_pareto",
        "f2_depth_heatmap",
        "f3_forest",
        "f4_retention",
        "f6_perplexity",
    ]


NASTY = (
    "a | b ``` <img src=x onerror=alert(1)> [link](http://example.com) {{ 7 * 7 }} {% raw %}"
    "\n\n# heading\n\n````\n\u202e"
)


@pytest.fixture(scope="module")
def nasty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report whose trials, title, claims and gates all hold hostile text."""
    trials = [{**trial, "output": NASTY, "answer": NASTY} for trial in TRIALS]
    results = copy.deepcopy(RESULTS)
    for claim in results["claims"]:
        claim["sentence"] = claim["reason"] = NASTY
    for gate in results["studies"]["needle"]["gates"]:
        gate["reason"] = NASTY
    config = {**CONFIG, "config": {**CONFIG["config"], "title": NASTY}, "hardware": {NASTY: NASTY}}
    folder = write_report(tmp_path_factory.mktemp("nasty"), results, trials, config)
    render.write_pages(folder)
    return folder


@pytest.mark.parametrize("name", [*PAGES, "needle.md"])
def test_hostile_text_shows_as_text_on_every_page(nasty: Path, report: Path, name: str) -> None:
    def shape(folder: Path) -> list[tuple[str, str]]:
        page = (folder / name).read_text()
        tokens = MARKDOWN.parse(body(page) if page.startswith("---\n") else page)
        inner = [child for token in tokens for child in token.children or []]
        kept = [t for t in [*tokens, *inner] if t.type not in ("text", "text_special", "inline", "em_open", "em_close")]
        return [(token.type, token.tag) for token in kept]

    assert shape(nasty) == shape(report)


def test_hostile_titles_stay_one_yaml_value(nasty: Path) -> None:
    front = cards.validate((nasty / "README.md").read_text(), nasty)
    assert front["pretty_name"] == visible(NASTY, newlines=True)


def test_samples_show_the_same_prompts_for_every_arm(report: Path) -> None:
    page = (report / "samples.md").read_text()
    blocks = page.split("\n## ")[1:]
    assert len(blocks) == 6  # two modes x (two contexts at a middle depth, one of them at the first depth too)
    arms = len({trial["arm"] for trial in TRIALS})
    for block in blocks:
        (prompt,) = re.findall(r"^Prompt (\S+)\. Hidden code: (\S+)$", block, flags=re.M)
        assert len(re.findall(r"^\| .+ \| (?:yes|no) \|", block, flags=re.M)) == arms
        full = next(t for t in TRIALS if t["id"] == prompt[0] and t["arm"] == "full" and t["answer"] == prompt[1])
        assert full["output"] in block


def test_what_a_template_prints_is_escaped_unless_it_is_markup() -> None:
    templates = environment.markdown()
    assert templates.from_string("{{ x }}").render(x="a|b") == "a&#124;b"
    assert templates.from_string("{{ x }}").render(x=Markup("a|b")) == "a|b"
    assert templates.from_string("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(x) }}").render(x="`") == "<&#96;>"
    assert templates.from_string("{{ x | html }}").render(x='"<') == "&#34;&#60;"
    with pytest.raises(UndefinedError):
        templates.from_string("{{ missing }}").render()


@pytest.mark.parametrize("name", ["results.json", "timings.json", "config.json", "trials.parquet"])
def test_a_missing_or_broken_file_is_named_and_no_page_is_written(tmp_path: Path, name: str) -> None:
    folder = write_report(tmp_path)
    (folder / name).write_text("{")
    with pytest.raises(KvatlasError, match=re.escape(name)):
        render.write_pages(folder)
    (folder / name).unlink()
    with pytest.raises(KvatlasError, match=re.escape(name)):
        render.write_pages(folder)
    assert not (folder / "README.md").exists()


def test_the_model_card_file_holds_a_block_for_every_model(report: Path) -> None:
    page = (report / "model-card.md").read_text()
    assert re.findall(r"^## (.+)$", page, flags=re.M) == ["smollm2-135m"]
    assert page.count("```yaml\nmodel-index:\n") == 1
