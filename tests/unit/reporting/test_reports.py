"""The committed reports: their pages are made from the data beside them, and their numbers follow from the trials."""

from __future__ import annotations

import math
import re
import shutil
from collections import defaultdict

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from kvatlas.files import read_json
from kvatlas.grid.studies import all_studies
from kvatlas.paths import figure_names
from kvatlas.reporting import escape, figures, render
from kvatlas.reporting.explorer import document
from tests.support.places import REPORTS

DATA = ("results.json", "timings.json", "config.json")

pytestmark = pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)


def test_there_is_a_committed_report(report):
    assert (report / "README.md").is_file()


def test_pages_are_rebuilt_byte_for_byte_from_their_data(report, tmp_path):
    for path in [*(report / name for name in DATA), *report.glob("*.parquet")]:
        shutil.copy(path, tmp_path / path.name)
    shutil.copytree(report / "figures", tmp_path / "figures")
    pages = render.write_pages(tmp_path)
    assert {path.name for path in pages} == {path.name for path in report.glob("*.md")}
    for page in pages:
        assert page.read_bytes() == (report / page.name).read_bytes(), f"{page.name} is not what its data gives"
    document.write_explorer(tmp_path)
    assert (tmp_path / "explorer.html").read_bytes() == (report / "explorer.html").read_bytes()


def test_the_first_page_is_one_that_people_read(report):
    page = (report / "README.md").read_text()
    assert len(page.splitlines()) <= 300
    assert len(page.encode()) <= 40_000


def test_every_arm_claim_and_figure_of_the_results_is_on_a_page(report):
    results = read_json(report / "results.json")
    page_of = {name: (report / all_studies()[name].page).read_text() for name in results["studies"]}
    for name, section in results["studies"].items():
        for row in section["rows"]:
            if row.get("mode") != "no_context":
                shown = rf"\| \*?(\[?{re.escape(row['arm'])}\b[^|]*)\*? \|"
                assert re.search(shown, page_of[name]), row["arm"]
    claims = (report / "claims.md").read_text()
    for claim in results["claims"]:
        if claim["study"] in results["studies"]:
            assert escape.cell(claim["sentence"], None) in claims
    everything = "".join([(report / "README.md").read_text(), *page_of.values()])
    for path in (report / "figures").glob("*.png"):
        assert f"(figures/{path.name})" in everything


def test_every_figure_that_has_data_is_there(report):
    results = read_json(report / "results.json")
    for name in figure_names():
        there = [(report / "figures" / f"{name}.{suffix}").is_file() for suffix in ("png", "svg")]
        assert all(there) if figures.load(name).available(results) else not any(there)


def test_recall_and_perplexity_follow_from_the_trials(report):
    results = read_json(report / "results.json")
    trials = [row for row in pq.read_table(report / "trials.parquet").to_pylist() if row["study"] == "needle"]
    groups = defaultdict(list)
    for row in trials:
        groups[row["model"], row["mode"], row["arm"]].append(row)
    rows = results["studies"]["needle"]["rows"]
    assert {(row["model"], row["mode"], row["arm"]) for row in rows} == set(groups)
    for row in rows:
        members = groups[row["model"], row["mode"], row["arm"]]
        assert (row["n"], row["hits"]) == (len(members), sum(member["hit"] for member in members))
        tokens = [nll for member in members for nll in member["ref_nlls"]]
        assert row["ref_ppl"] == pytest.approx(math.exp(np.mean(tokens)))
        clusters = defaultdict(list)
        for member in members:
            clusters[member["context"], member["seed"]].append(member["hit"])
        assert row["recall_se_published"] == pytest.approx(stats.sem([np.mean(hits) for hits in clusters.values()]))


def test_recall_contrasts_follow_from_the_trials_by_an_exact_sign_flip(report):
    results = read_json(report / "results.json")
    trials = [row for row in pq.read_table(report / "trials.parquet").to_pylist() if row["study"] == "needle"]
    recall: dict[tuple[str, str, str], dict[tuple[int, int], list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in trials:
        recall[row["model"], row["mode"], row["arm"]][row["context"], row["seed"]].append(row["hit"])
    contrasts = [row for row in results["studies"]["needle"]["contrasts"] if row["family"] == "primary"]
    assert contrasts
    for row in contrasts:
        ours = recall[row["model"], row["mode"], row["arm"]]
        theirs = recall[row["model"], row["mode"], row["versus"]]
        shared = sorted(set(ours) & set(theirs))
        differences = [np.mean(ours[cluster]) - np.mean(theirs[cluster]) for cluster in shared]
        assert row["n_clusters"] == len(differences)
        assert row["diff"] == pytest.approx(np.mean(differences))
        # A cluster without a difference changes nothing; past 14 that differ, flips are drawn (see test_verdicts.py).
        flipped = [difference for difference in differences if difference]
        if not 2 <= len(flipped) <= 14:
            continue
        exact = stats.permutation_test(
            (flipped,), np.mean, permutation_type="samples", n_resamples=2 ** len(flipped), vectorized=False
        )
        assert row["p"] == pytest.approx(exact.pvalue)
