"""Does a repeat agree: the same report does, a noisy one does and its flips are counted, one with a broken arm does not."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from kvatlas.analysis.agreement import arms, comparison, report, settings
from kvatlas.analysis.agreement.report import Report
from kvatlas.errors import KvatlasError
from tests.support.places import ROOT

FOLDER = ROOT / "reports/embedded"
RNG_SEED = 7


@pytest.fixture(scope="module")
def first() -> Report:
    return report.read(FOLDER, "first")


@pytest.fixture
def second(first: Report) -> Report:
    return copy.deepcopy(replace(first, name="second"))


def arm_rows(rows: Any, arm: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["study"] == "needle" and row["arm"] == arm and row["mode"] == "aware"]


def row_of(compared: dict[str, Any], arm: str, study: str = "needle", variant: str = "aware") -> dict[str, Any]:
    (row,) = [r for r in compared["arms"] if (r["study"], r["arm"], r["variant"]) == (study, arm, variant)]
    return row


def differing(compared: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(row["study"], row["arm"], row["variant"]) for row in compared["arms"] if row["differs"]]


def test_a_report_agrees_with_itself_in_every_bit(first, second):
    compared = comparison.compare(first, second)
    assert compared["verdict"] == "agree"
    assert all(row["equal"] == row["n"] and row["largest"] == 0 for row in compared["arms"])
    assert not any(compared["settings"].values())
    assert compared["aggregates"]["inside"] == compared["aggregates"]["n"] > 400
    assert compared["claims"]["n"] > 80
    assert compared["claims"]["changed"] == []


def test_every_trial_of_the_report_is_in_some_arm(first, second):
    compared = comparison.compare(first, second)
    assert sum(row["n"] for row in compared["arms"] if row["kind"] == "answers") == len(first.answers)
    assert sum(row["n"] for row in compared["arms"] if row["kind"] == "measurements") == len(first.measurements)


def test_a_broken_policy_is_the_one_arm_that_differs(first, second):
    for row in arm_rows(second.answers, "snapkv-4x"):
        row["output_ids"] = [0]
        row["hit"] = False
    compared = comparison.compare(first, second)
    assert differing(compared) == [("needle", "snapkv-4x", "aware")]
    assert compared["verdict"] == "differ"
    row = row_of(compared, "snapkv-4x")
    assert (row["equal"], row["gained"]) == (0, 0)
    assert row["lost"] == sum(trial["hit"] for trial in arm_rows(first.answers, "snapkv-4x")) > 5


def test_noise_that_flips_answers_both_ways_is_counted_and_agrees(first, second):
    rng = np.random.default_rng(RNG_SEED)
    for row in second.answers:
        row["gold_nlls"] = [nll + rng.normal(0, 1e-3) for nll in row["gold_nlls"] or ()]
        row["hit"] = not row["hit"] if rng.random() < 0.01 else row["hit"]
    flipped = sum(one["hit"] != other["hit"] for one, other in zip(first.answers, second.answers, strict=True))
    assert flipped > 5
    compared = comparison.compare(first, second)
    assert compared["verdict"] == "agree"
    assert sum(row["gained"] + row["lost"] for row in compared["arms"] if row["kind"] == "answers") == flipped


@pytest.mark.parametrize(("shift", "verdict"), [(0.05, "differ"), (0.005, "agree")])
def test_a_loss_may_shift_by_the_tolerance_and_no_more(first, second, shift, verdict):
    for row in arm_rows(second.answers, "h2o-4x"):
        row["gold_nlls"] = [nll + shift for nll in row["gold_nlls"]]
    compared = comparison.compare(first, second)
    assert compared["verdict"] == verdict
    assert row_of(compared, "h2o-4x")["shift"] == pytest.approx(shift)


def test_a_stream_and_a_measurement_that_shift_are_named(first, second):
    (stream,) = [row for row in second.streams if row["arm"] == "snapkv-256slots" and row["protocol"] == "online"]
    stream["nlls"] = [nll + 0.1 for nll in stream["nlls"]]
    for row in second.measurements:
        if row["arm"] == "kivi4":
            row["value"] *= 1.03
    compared = comparison.compare(first, second)
    assert {arm for _, arm, _ in differing(compared)} == {"snapkv-256slots", "kivi4"}


def test_mcnemar_and_holm_are_the_textbook_ones(first, second):
    rows = arm_rows(second.answers, "full")
    hits = [row for row in rows if row["hit"]]
    for row in hits[:6]:
        row["hit"] = False
    row = row_of(comparison.compare(first, second), "full")
    assert (row["gained"], row["lost"]) == (0, 6)
    assert row["p_hits"] == pytest.approx(2 * 0.5**6)
    assert row["p_hits_holm"] == row["p_hits"]
    assert row["differs"]


def test_tests_of_all_arms_are_corrected_together(first, second):
    for arm in ("full", "snapkv-4x", "pinned_emeans-4x"):
        hits = [row for row in arm_rows(second.answers, arm) if row["hit"]]
        for row in hits[: 6 if arm == "full" else 1]:
            row["hit"] = False
    compared = comparison.compare(first, second)
    assert row_of(compared, "full")["p_hits_holm"] == pytest.approx(2 * 0.5**6 * 3)
    assert differing(compared) == []


def test_a_verdict_that_changes_is_listed_with_both_effects(first, second):
    claim = next(claim for claim in second.results["claims"] if claim["verdict"] == "supported")
    claim.update(verdict="not resolved", effect=0.25)
    (changed,) = comparison.compare(first, second)["claims"]["changed"]
    assert (changed["id"], changed["first_verdict"], changed["second_verdict"]) == (
        claim["id"],
        "supported",
        "not resolved",
    )
    assert changed["second_effect"] == 0.25
    assert changed["first_effect"] != 0.25


def test_an_aggregate_outside_the_others_interval_is_listed(first, second):
    row = next(r for r in second.results["studies"]["needle"]["rows"] if r["arm"] == "snapkv-4x")
    row["recall"], row["recall_ci"] = 0.99, [0.97, 1.0]
    compared = comparison.compare(first, second)
    (outside,) = compared["aggregates"]["outside"]
    assert (outside["metric"], outside["second"]) == ("recall", 0.99)
    assert compared["aggregates"]["inside"] == compared["aggregates"]["n"] - 1


def test_what_differs_in_the_making_is_listed_and_names_of_runs_are_not(first, second):
    second.config["packages"]["torch"] = "9.9"
    second.config["config"]["title"] = "Another title"
    second.config["config"]["studies"]["needle"]["n_sinks"] = 5
    second.config["hardware"]["new"] = True
    found = settings.differences(first, second)
    assert found["packages"] == [{"key": "torch", "first": first.config["packages"]["torch"], "second": "9.9"}]
    assert [item["key"] for item in found["config"]] == ["studies.needle.n_sinks"]
    assert found["hardware"] == [{"key": "new", "first": "-", "second": "True"}]


def test_arms_of_one_report_alone_are_listed(first, second):
    kept = [row for row in second.answers if (row["study"], row["arm"]) != ("needle", "snapkv-8x")]
    compared = comparison.compare(first, replace(second, answers=kept))
    assert compared["only"] == {"first": ["needle smollm2-135m snapkv-8x aware"], "second": []}
    assert compared["verdict"] == "agree"


def test_another_grid_cannot_be_compared(first, second):
    for row in [*second.answers, *second.streams, *second.measurements]:
        row["id"] += "-other"
    with pytest.raises(KvatlasError, match="no trial of one is in the other; compare runs of one grid"):
        comparison.compare(first, second)


def test_one_name_for_two_prompts_is_refused(first, second):
    second.answers[0]["answer"] = "another"
    with pytest.raises(KvatlasError, match=r"answer is .* in one report and 'another' in the other"):
        comparison.compare(first, second)


def test_losses_of_other_tokens_are_refused(first, second):
    second.streams[0]["nlls"] = second.streams[0]["nlls"][:-1]
    with pytest.raises(KvatlasError, match="not of the same texts"):
        comparison.compare(first, second)


def test_the_tolerance_is_one_percent_of_perplexity():
    assert np.expm1(arms.TOLERANCE) == pytest.approx(0.01, rel=0.01)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in report.DATA:
        shutil.copy(FOLDER / name, tmp_path / name)
    return tmp_path


def test_a_table_of_another_version_is_one_line(folder):
    path = folder / report.ANSWERS
    table = pq.read_table(path)
    pq.write_table(table.select([name for name in table.column_names if name != "gold_nlls"]), path)
    with pytest.raises(KvatlasError, match="gold_nlls") as caught:
        report.read(folder, "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"), [("results.json", "[]"), ("config.json", "{"), (report.ANSWERS, "no parquet")]
)
def test_a_broken_file_is_one_line_that_names_it(folder, name, text):
    (folder / name).write_text(text)
    with pytest.raises(KvatlasError, match=name) as caught:
        report.read(folder, "x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["results.json", "config.json", report.ANSWERS])
def test_a_missing_file_is_one_line_that_names_it(folder, name):
    (folder / name).unlink()
    with pytest.raises(KvatlasError, match=name):
        report.read(folder, "x")


def test_a_report_without_streams_is_compared_by_what_it_has(folder, first):
    (folder / "streams.parquet").unlink()
    compared = comparison.compare(first, report.read(folder, "x"))
    assert {row["kind"] for row in compared["arms"]} == {"answers", "measurements"}
    assert json.dumps(compared, allow_nan=False)
