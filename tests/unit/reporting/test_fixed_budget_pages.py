"""The fixed-budget study in the report: its tables, its answer about sink + recent, and its figures."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims import judge
from kvatlas.analysis.studies import attention_loss, needle, online_lm
from kvatlas.reporting import fixed_budget, render
from tests.support import drawings, synthetic
from tests.support.places import CLAIMS_FILE
from tests.support.streams import loss_trials, online_trials

FIGURES = ("f5_online_lm", "f7_perplexity_protocols", "f8_attention_loss")


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    trials = online_trials(protocols=("online", "prefill", "single"), blocks=(1,))
    arms = {trial["arm"] for trial in trials}
    registry = claim_files.load(CLAIMS_FILE)
    pairs = judge.pairs(registry, "online_lm", arms, online_lm.METRICS)
    studies = {
        "online_lm": online_lm.aggregate(trials, {"pairs": pairs}),
        "attention_loss": attention_loss.aggregate(loss_trials()),
        "needle": needle.aggregate(synthetic.recall_trials()),
    }
    found: dict[str, Any] = {"schema": 1, "run": "synthetic", "studies": studies, "published": []}
    found["claims"] = judge.evaluate(registry, found)
    return found


def test_the_answer_names_what_beats_sink_and_recent_by_its_verdict(results):
    found = fixed_budget.context(results, {}, {})
    answers = {answer["place"]: answer for answer in found["online"]["groups"][0]["answers"]}
    fair = answers["256 slots, 4 sinks + 32 recent protected"]
    assert fair["better"] == "SnapKV"
    assert "KeyDiff" in fair["worse"]
    assert "Random" in fair["not_resolved"]
    bare = answers["256 slots, nothing protected"]
    assert "High-L2" in bare["worse"]


def test_tables_say_what_is_protected_and_how_much_is_held(results):
    table = fixed_budget.context(results, {}, {})["online"]["groups"][0]["main"]
    by_arm = {row.cells[-1]: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows}
    assert by_arm["snapkv-256slots-fair"]["Protected"] == "4 sinks + 32 recent protected"
    assert by_arm["snapkv-256slots"]["Protected"] == "nothing protected"
    assert (by_arm["snapkv-256slots"]["Slots"], by_arm["snapkv-256slots"]["Peak slots"]) == ("256", "288")
    assert by_arm["full"]["PPL after the budget binds"] == "–"


def test_the_section_explains_blocks_and_protocols_and_shows_statements(results):
    made = render.environment()
    context = {"fixed": fixed_budget.context(results, {}, {})}
    page = str(made.get_template("fixed-budget.md.j2").render(context))
    for words in (
        "## Online language modelling",
        "Block of 32 against block of 1",
        "is identical in all arms (checked on every prediction)",
        "Does any selector beat sink + recent?",
        "Single forward: PPL",
        "## Attention loss",
        "**Supported.**",
    ):
        assert words in page
    assert "## Passkey" not in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert all(line.count("|") >= 3 for line in rows)


def test_a_run_whose_arms_differ_before_the_budget_binds_says_so(results):
    broken = copy.deepcopy(results)
    broken["studies"]["online_lm"]["checks"][0]["identical_before_binding"] = False
    context = {"fixed": fixed_budget.context(broken, {}, {})}
    assert "do not trust" in str(render.environment().get_template("fixed-budget.md.j2").render(context))


def test_a_run_without_these_studies_has_no_section(results):
    assert fixed_budget.context({"studies": {"needle": results["studies"]["needle"]}}, {}, {}) is None


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_exactly_when_it_is_available(name, results):
    drawings.check_availability(name, results)


@pytest.mark.parametrize("name", FIGURES)
def test_text_stays_inside_the_page_and_panels_have_data_and_their_n(name, results):
    drawings.check_page(name, results)


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_results_give_the_same_bytes(name, results, tmp_path: Path):
    drawings.check_bytes(name, results, tmp_path)
