"""A corpus of hostile texts wherever foreign text reaches a page, a card, a log, a spec or a figure: it stays text."""

from __future__ import annotations

import copy
import html
import itertools
import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import DatasetCard
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from kvatlas.analysis.trials import write_parquet
from kvatlas.errors import KvatlasError
from kvatlas.grid import config as configurations
from kvatlas.pipeline.workflow import Workflow
from kvatlas.reporting import environment, escape, render, style
from kvatlas.reporting.hub import cards
from kvatlas.terminal import visible
from tests.support import hostile_strings, synthetic
from tests.support.places import ROOT
from tests.unit.reporting.test_render import CONFIG, write_report

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
MODELS = ("m0", "m1", "m2", "m3", "m4")
TRIALS = synthetic.recall_trials(models=MODELS, contexts=(512,), seeds=2, depths=(10, 50))
RESULTS = synthetic.results_json(TRIALS, published=ROOT / "config/published")
PLAIN = "plain words"
WRITABLE = (*hostile_strings.SHORT, *hostile_strings.LONG)


def structure(page: str) -> list[tuple[str, str]]:
    """The tokens of a page but for its text."""
    tokens = MARKDOWN.parse(page)
    inner = [child for token in tokens for child in token.children or []]
    return [(t.type, t.tag) for t in [*tokens, *inner] if t.type not in ("text", "text_special", "inline", "softbreak")]


def shown(page: str) -> str:
    """The words that a reader sees, blanks and joiners aside."""
    rendered = MARKDOWN.render(page)
    return "".join(html.unescape(rendered).replace(escape.JOINER, "").split())


def said(text: str) -> str:
    """How a text stands on a page."""
    return "".join(visible(text).split())


@pytest.mark.parametrize("wrap", ["- {}", "| a | {} |\n|---|---|\n| {} | b |", "Words {} words.", "## {}"])
def test_every_text_is_shown_as_it_is_and_adds_no_structure(wrap: str) -> None:
    for text in hostile_strings.ALL:
        spelled = escape.cell(text) or PLAIN
        page = wrap.replace("{}", spelled)
        assert structure(page) == structure(wrap.replace("{}", PLAIN)), text[:80]
        assert said(escape.truncate(text, escape.DEFAULT_LIMIT)) in shown(page), text[:80]


def test_every_text_stays_inside_its_fence_and_its_attribute() -> None:
    for text in (*hostile_strings.SHORT, *hostile_strings.LONG[:3]):
        (token,) = MARKDOWN.parse(escape.fence(text))
        assert token.type == "fence"
        attribute = escape.html(text, None)
        assert not set(attribute) & set("<>\"'`")
        assert "".join(html.unescape(attribute).split()) == said(text)


def test_every_text_is_one_visible_line_of_an_error() -> None:
    for text in hostile_strings.ALL:
        line = str(KvatlasError(f"name {text}: what to do"))
        blanks = {character for character in line if character.isspace()}
        assert all(unicodedata.category(blank) == "Zs" for blank in blanks), text[:80]
        assert "".join(line.split()).isprintable(), text[:80]
        assert len(line) < 5000, text[:80]
        assert line.endswith("what to do"), text[:80]


def test_every_text_is_one_value_for_the_parser_of_cards() -> None:
    for text in hostile_strings.SHORT:
        card = cards.dump(cards.front_matter(text, [text], {"trials.parquet": 10})) + "\n# Page\n"
        assert DatasetCard(card).data.to_dict()["tags"][-1] == visible(text, newlines=True), text
        assert cards.parse(card)["pretty_name"] == visible(text, newlines=True), text


def test_every_title_is_refused_in_one_line_or_stays_inside_the_spec_of_a_job() -> None:
    loaded = configurations.load(ROOT / "config/smoke.yaml", root=ROOT)
    flow = Workflow(loaded)
    for text in hostile_strings.SHORT:
        loaded["title"] = text
        spec = flow.results_spec()
        assert "<" not in spec
        assert spec.count("\n") == 0
        assert json.loads(spec)["title"] == text


def test_every_text_can_stand_in_a_figure(tmp_path: Path) -> None:
    texts = [*hostile_strings.MATHTEXT, *hostile_strings.TEMPLATES[:9], *hostile_strings.UNICODE[:20]]
    style.save(_figure_of([visible(text)[:200] for text in texts]), tmp_path / "figure")
    assert (tmp_path / "figure.svg").stat().st_size > 10_000


@style.styled
def _figure_of(texts: Sequence[str]) -> Figure:
    figure = Figure(figsize=(2, 2))
    for number, text in enumerate(texts):
        figure.text(0.1, number / len(texts), text)
    return figure


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two reports of the same numbers: one with plain words, one with the whole corpus in their places."""
    folders = []
    for name, texts in (("plain", [PLAIN]), ("hostile", WRITABLE)):
        folder = tmp_path_factory.mktemp(name)
        _write_report(folder, texts)
        folders.append(folder)
    return folders[0], folders[1]


def _write_report(folder: Path, texts: Sequence[str]) -> None:
    """Outputs, answers, sentences, reasons and hardware hold `texts` in turn, the title one of them."""
    draw = itertools.cycle(texts)
    trials = [{**trial, "output": next(draw) if _is_shown(trial) else PLAIN} for trial in TRIALS]
    results = copy.deepcopy(RESULTS)
    for claim in results["claims"]:
        claim["sentence"] = claim["reason"] = next(draw)
    for gate in results["studies"]["needle"]["gates"]:
        gate["reason"] = next(draw)
    config = {**CONFIG, "config": {**CONFIG["config"], "title": texts[0]}, "hardware": {"processor": texts[0]}}
    write_report(folder, results, trials, config)
    render.write_pages(folder)


def _is_shown(trial: Mapping[str, Any]) -> bool:
    """Whether a trial is one of the samples."""
    return trial["seed"] == 0 and trial["mode"] != "no_context"


@pytest.mark.parametrize("name", ["README.md", "samples.md", "cells.md", "model-card.md"])
def test_the_corpus_changes_no_structure_of_a_page(reports: tuple[Path, Path], name: str) -> None:
    plain, hostile = ((folder / name).read_text().rpartition("\n---\n")[2] for folder in reports)
    assert structure(hostile) == structure(plain)


def test_every_text_of_the_corpus_is_on_the_page_of_samples(reports: tuple[Path, Path]) -> None:
    page = shown((reports[1] / "samples.md").read_text())
    missing = [text[:80] for text in WRITABLE if said(escape.truncate(text, environment.SAMPLE_LIMIT)) not in page]
    assert missing == []


def test_half_a_character_is_one_line_wherever_it_is_to_be_written(tmp_path: Path) -> None:
    for text in hostile_strings.HALF_CHARACTERS:
        with pytest.raises(KvatlasError, match="half a character"):
            write_parquet([TRIALS[0] | {"output": text}], tmp_path / "trials.parquet")
