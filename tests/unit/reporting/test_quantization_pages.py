"""The quantization study in the report: its tables, what it says is resolved, its recommendations and its figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims import judge
from kvatlas.analysis.studies import needle, quantizer_error, task_suite
from kvatlas.reporting import quantization, render
from tests.support import drawings, synthetic
from tests.support.places import CLAIMS_FILE
from tests.support.suite import error_trial, passage, trials_of

FIGURES = ("f1_studies", "f9_quantizer_error", "f10_task_families", "f12_interaction")


def everything(family: str, depth: int | None, instance: int) -> bool:
    return True


def nothing(family: str, depth: int | None, instance: int) -> bool:
    return False


def late(family: str, depth: int | None, instance: int) -> bool:
    return depth in (65, 95) or (family == "summary" and instance % 2 == 0)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    n = 30
    trials = [
        *trials_of("full", everything, instances=n),
        *trials_of("full", nothing, instances=n, mode="no_context"),
        *trials_of("full-int8", everything, instances=n, share=0.265625),
        *trials_of("full-kivi4", everything, instances=n, share=0.17),
        *trials_of("full-int2", nothing, instances=n, share=0.078125),
        *trials_of("sliding_window-50pct", late, instances=n, share=0.5),
        *trials_of("sliding_window-50pct-int8", late, instances=n, share=0.13),
        *trials_of("snapkv-50pct", lambda f, d, i: i % 2 == 0, instances=n, share=0.5),
    ]
    base = [2 + math.sin(step) for step in range(320)]
    for arm, loss in (("full", 0.0), ("sliding_window-50pct", 0.4), ("full-int2", 3.0)):
        for protocol in ("single", "prefill", "online"):
            extra = 0.0 if protocol == "single" and arm != "full-int2" else loss
            trials.append(passage(arm, protocol, [value + extra for value in base]))
    errors = [error_trial("fp16", chunk, [0.001, 0.002]) for chunk in range(3)]
    errors += [error_trial("int8", chunk, [0.1, 0.2 + 0.01 * chunk]) for chunk in range(3)]
    errors += [error_trial("int8", chunk, [0.05, 0.1], granularity="channel", own=False) for chunk in range(3)]
    errors += [error_trial("kivi4", chunk, [0.5, 0.9]) for chunk in range(3)]
    trials_needle = [t | {"model": "tiny"} for t in synthetic.recall_trials()]
    studies = {
        "task_suite": task_suite.aggregate(trials),
        "quantizer_error": quantizer_error.aggregate(errors),
        "needle": needle.aggregate(trials_needle),
    }
    found: dict[str, Any] = {"schema": 1, "run": "synthetic", "studies": studies, "published": []}
    found["claims"] = judge.evaluate(claim_files.load(CLAIMS_FILE), found)
    return found


def section(results: dict[str, Any]) -> dict[str, Any]:
    return quantization.context(results, {}, {})["suite"]["groups"][0]


def test_the_main_table_names_key_granularity_and_both_kinds_of_bytes(results):
    table = section(results)["main"]
    rows = {row.cells[-1]: dict(zip(table.columns, row.cells, strict=True)) for row in table.rows}
    assert rows["full-kivi4"]["Precision"] == "kivi4 (keys per channel)"
    assert rows["full-int8"]["Precision"] == "int8 (keys per token)"
    assert rows["full-int8"]["KV payload (KiB)"] == "53"
    assert rows["full-int8"]["Of fp32 control"] == "0.27x"
    assert rows["full-int8"]["Of bf16 cache"] == "0.53x"
    assert rows["full"]["Over control (points)"] == "–"


def test_the_page_says_what_is_resolved_at_its_n(results):
    told = section(results)["unresolved"]
    assert "Sliding window 50%" in told["resolved"]
    assert "Full cache, int8" in told["non_inferior"]
    assert told["open"] == "none"


def test_recommendations_follow_the_tests_and_name_no_arm_without_one(results):
    rows = {row.cells[0]: row.cells for row in section(results)["recommendations"].rows}
    assert rows["anything"][2] == "Full cache, kivi4"
    assert rows["recall from anywhere in a bounded cache"][2].startswith("none of these arms")


def test_the_section_renders_with_all_its_tables(results):
    page = str(
        render.environment()
        .get_template("quantization.md.j2")
        .render({"quantization": quantization.context(results, {}, {})})
    )
    for words in (
        "## Task suite",
        "#### Needle depth sweep",
        "#### Eviction x quantization",
        "#### Perplexity against accuracy",
        "#### Recommendations by workload",
        "## Quantizer reconstruction error",
        "**Supported.**",
    ):
        assert words in page
    widths: set[int] = set()
    for line in page.splitlines():
        if line.startswith("|"):
            widths.add(line.replace("\\|", "").count("|"))
        elif widths:
            assert len(widths) == 1
            widths = set()


def test_a_run_without_these_studies_has_no_section(results):
    assert quantization.context({"studies": {"needle": results["studies"]["needle"]}}, {}, {}) is None


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_exactly_when_it_is_available(name, results):
    drawings.check_availability(name, results)


@pytest.mark.parametrize("name", FIGURES)
def test_text_stays_inside_the_page_and_panels_have_data_and_their_n(name, results):
    drawings.check_page(name, results)


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_results_give_the_same_bytes(name, results, tmp_path: Path):
    drawings.check_bytes(name, results, tmp_path)
