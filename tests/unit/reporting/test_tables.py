"""Tables: the published columns in their order, one format per number, rows that can be traced."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from kvatlas.reporting import evidence, labels, provenance, reproduction, tables
from tests.support import synthetic
from tests.support.places import ROOT

MODEL, MODE = "smollm2-135m", "aware"
PUBLISHED = (
    "Method",
    "Ratio",
    "Mean KV (MiB)",
    "NIAH recall (N = 40) ± SE (published formula)",
    "Ref PPL (TF) ± SE",
    "Self PPL",
    "Embed CosSim",
    "Hidden CosSim",
    "Tok/s",
)


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return synthetic.results_json(
        synthetic.recall_trials(),
        claims_file=ROOT / "config/claims.yaml",
        published=ROOT / "config/published",
    )


def column(table: tables.Table, name: str) -> list[str]:
    return [row.cells[table.columns.index(name)] for row in table.rows]


def test_the_summary_has_the_published_columns_in_the_published_order(results: dict[str, Any]) -> None:
    table = tables.summary(results, {"rows": []}, "needle", MODEL, MODE)
    assert table.columns[: len(PUBLISHED)] == PUBLISHED
    assert table.columns[len(PUBLISHED) :] == (
        "Recall, 95% interval",
        "Actual ratio",
        "KL",
        "Resident bytes",
        "Clusters",
        "Arm",
    )
    assert all(len(row.cells) == len(table.columns) for row in table.rows)


def test_the_summary_lists_arms_in_the_published_order(results: dict[str, Any]) -> None:
    table = tables.summary(results, {"rows": []}, "needle", MODEL, MODE)
    names = [
        method for method, ratio in zip(column(table, "Method"), column(table, "Ratio"), strict=True) if ratio == "4x"
    ]
    assert names[:8] == [
        "Naive Drop",
        "StreamingLLM",
        "H2O",
        "SnapKV",
        "Post-RoPE AW E-Means",
        "Pre-RoPE AW E-Means",
        "Pinned AW E-Means",
        "SnapKV + PreRoPE E-Means",
    ]
    assert table.rows[0].cells[:2] == ("Full cache", "1x")
    assert column(table, "Ratio") == sorted(column(table, "Ratio"))


def test_every_summary_number_comes_from_the_row_that_its_arm_names(results: dict[str, Any]) -> None:
    table = tables.summary(results, {"rows": []}, "needle", MODEL, MODE)
    rows = {row["arm"]: row for row in tables.section(results, "needle", "rows", MODEL, MODE)}
    assert sorted(column(table, "Arm")) == sorted(rows)
    for line in table.rows:
        row, cells = rows[line.cells[-1]], dict(zip(table.columns, line.cells, strict=True))
        assert cells["Mean KV (MiB)"] == f"{row['resident_bf16_mib']:.2f}"
        assert cells[PUBLISHED[3]] == f"{100 * row['recall']:.1f}% ± {100 * row['recall_se_published']:.1f}%"
        assert cells["Resident bytes"].replace(",", "") == f"{row['kv_mib'] * 2**20:.0f}"
        assert cells["Embed CosSim"] == f"{row['embed_cosine']:.4f}"
        assert row["cells"]


def test_decode_speed_is_the_median_over_an_arms_cells_and_missing_is_a_dash(results: dict[str, Any]) -> None:
    same = {"study": "needle", "model": MODEL, "mode": MODE, "arm": "snapkv-4x"}
    rows = [{**same, "decode_tokens_per_s": speed} for speed in (10.0, 30.0, 12.0)]
    rows.append({**same, "mode": "agnostic", "decode_tokens_per_s": 99.0})
    table = tables.summary(results, {"rows": rows}, "needle", MODEL, MODE)
    speeds = dict(zip(column(table, "Arm"), column(table, "Tok/s"), strict=True))
    assert speeds["snapkv-4x"] == "12.0"
    assert speeds["full"] == labels.DASH


def test_depth_cells_show_hits_out_of_n_and_add_up_to_the_total(results: dict[str, Any]) -> None:
    table = tables.by_depth(results, "needle", MODEL, MODE)
    assert table.columns == (
        "Method",
        "Ratio",
        "10% depth",
        "30% depth",
        "50% depth",
        "70% depth",
        "90% depth",
        "Total hits",
    )
    for row in table.rows:
        counts = [tuple(map(int, cell.split("(")[1].rstrip(")").split("/"))) for cell in row.cells[2:]]
        assert (sum(hits for hits, _ in counts[:-1]), sum(n for _, n in counts[:-1])) == counts[-1]


def test_contrasts_set_full_and_snapkv_beside_each_other(results: dict[str, Any]) -> None:
    table = tables.contrasts(results, "needle", MODEL, MODE)
    found = {
        (row["arm"], row["versus"]): row
        for row in tables.section(results, "needle", "contrasts", MODEL, MODE)
        if row["metric"] == "recall"
    }
    line = next(row for row in table.rows if row.cells[:2] == ("H2O", "4x"))
    assert line.cells[2] == labels.signed(100 * found["h2o-4x", "full"]["diff"], 1)
    assert line.cells[5] == labels.signed(100 * found["h2o-4x", "snapkv-4x"]["diff"], 1)
    assert not [row for row in table.rows if row.cells[:2] == ("Full cache", "1x")]


def test_rows_of_a_task_past_no_gate_are_muted(results: dict[str, Any]) -> None:
    changed = copy.deepcopy(results)
    for row in changed["studies"]["needle"]["rows"]:
        row["gate_passed"] = False
    for table in (
        tables.summary(changed, {}, "needle", MODEL, MODE),
        tables.by_depth(changed, "needle", MODEL, MODE),
        tables.contrasts(changed, "needle", MODEL, MODE),
    ):
        assert table.rows
        assert all(row.muted for row in table.rows)


def test_missing_studies_give_empty_tables() -> None:
    empty: dict[str, Any] = {"studies": {}}
    for table in (
        tables.summary(empty, {}, "needle", MODEL, MODE),
        tables.by_depth(empty, "needle", MODEL, MODE),
        tables.contrasts(empty, "needle", MODEL, MODE),
        tables.retention(empty, "needle", MODEL, MODE),
        evidence.gates(empty),
        evidence.noise_floor(empty),
        evidence.claims(empty),
        reproduction.published(empty),
        reproduction.not_reproduced(empty),
    ):
        assert not table
    assert tables.groups(empty, "needle") == []


def test_groups_leave_the_floor_out_and_put_the_aware_mode_first(results: dict[str, Any]) -> None:
    assert tables.groups(results, "needle") == [(MODEL, "aware"), (MODEL, "agnostic")]


def test_every_claim_of_a_study_that_was_run_has_a_line_and_a_statement(results: dict[str, Any]) -> None:
    claims = [claim for claim in results["claims"] if claim["study"] == "needle"]
    table = evidence.claims(results)
    assert column(table, "Claim") == [claim["sentence"] for claim in claims]
    assert column(table, "Verdict") == [claim["verdict"] for claim in claims]
    said = [item.sentence for _, items in evidence.statements(results, "needle") for item in items]
    assert sorted(said) == sorted(claim["sentence"] for claim in claims)
    assert sum(count for _, count in evidence.verdict_counts(results)) == len(claims)
    assert dict(evidence.untested(results)).keys() == {c["study"] for c in results["claims"]} - {"needle"}


def test_statements_stand_under_their_topics_in_the_order_of_the_page(results: dict[str, Any]) -> None:
    topic_of = {claim["sentence"]: claim["topic"] for claim in results["claims"]}
    grouped = evidence.statements(results, "needle")
    assert [title for title, _ in grouped] == [*results["topics"], "Further claims"]
    for title, items in grouped:
        assert {topic_of[item.sentence] or "Further claims" for item in items} == {title}


@pytest.mark.parametrize(
    ("claim", "effect", "bounds"),
    [
        (
            {"metric": "recall", "test": "superiority", "effect": 0.125, "ci": [-0.05, 0.3]},
            "+12.5 points",
            "−5.0 to 30.0",
        ),
        (
            {"metric": "ref_nll", "test": "superiority", "effect": 0.0, "ci": [0.0, 0.0]},
            "PPL 1.00x",
            "1.00 to 1.00x",
        ),
        ({"metric": "recall", "test": "level", "effect": 0.04, "ci": [0.0, 0.1]}, "4.0%", "0.0 to 10.0%"),
        ({"metric": "embed_cosine", "test": "superiority", "effect": 0.1, "ci": None}, "+0.100", labels.DASH),
        ({"metric": "recall", "test": "level", "effect": None, "ci": None}, labels.DASH, labels.DASH),
    ],
)
def test_effects_are_told_in_the_readers_unit(claim: dict[str, Any], effect: str, bounds: str) -> None:
    assert evidence.effect_text(claim) == (effect, bounds)


def test_published_numbers_are_either_beside_ours_or_counted_with_the_reason(results: dict[str, Any]) -> None:
    total = sum(int(cell) for cell in column(reproduction.not_reproduced(results), "Numbers"))
    assert total + len(reproduction.published(results).rows) == len(results["published"])
    compared = {
        "source": "s",
        "table": "t",
        "label": "SnapKV",
        "arm": "snapkv-4x",
        "model": "m",
        "metric": "recall_pct",
        "published": 84.4,
        "status": "compared",
        "reason": "",
        "subset": "all",
        "reproduced": 80.0,
        "difference": -4.4,
        "ci": [60.0, 92.0],
        "inside": True,
        "n": 45,
    }
    (line,) = reproduction.published({"published": [compared]}).rows
    assert line.cells[4:] == ("84.400", "80.000", "−4.400", "60.000 to 92.000", "yes", "45")


def test_provenance_shows_whatever_the_configuration_holds() -> None:
    shown = provenance.pairs(
        {
            "models": {"tiny": {"source": "hub", "files": [{"sha256": "ab"}], "none": None}},
            "rope_telemetry": [{"model": "tiny", "max_relative_error": 1.25e-6}],
            "packages": {},
        }
    )
    assert [table.columns[0] for table in shown] == ["Model tiny", "RoPE inversion"]
    assert [row.cells for row in shown[0].rows] == [
        ("files[0].sha256", "ab"),
        ("none", "–"),
        ("source", "hub"),
    ]
    assert shown[1].rows[0].cells == ("tiny.max_relative_error", "1.25e-06")


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (labels.percent(0.911), "91.1%"),
        (labels.percent(None), "–"),
        (labels.percent(float("nan")), "–"),
        (labels.percent_se(0.911, 0.0351), "91.1% ± 3.5%"),
        (labels.interval([0.763, 0.981], scale=100, unit="%"), "76.3 to 98.1%"),
        (labels.perplexity(1.1141, 0.0128), "1.114 ± 0.013"),
        (labels.perplexity(1767.4), "1,767.4"),
        (labels.signed(-5.04, 1), "−5.0"),
        (labels.signed(-0.04, 1), "0.0"),
        (labels.signed(5, 1, " points"), "+5.0 points"),
        (labels.p_value(0.0004), "<0.001"),
        (labels.p_value(0.05), "0.050"),
        (labels.times(3.4267), "3.43x"),
        (labels.hits(0, 9), "0/9"),
        (labels.hits(0, 0), "–"),
        (labels.spread([40, 20, 40]), "20 to 40"),
        (labels.method_label("snapkv_emeans_proportional"), "SnapKV + PreRoPE E-Means (proportional)"),
        (labels.method_label("h2o_raw"), "H2O (raw)"),
        (labels.method_label("brand_new"), "brand new"),
        (labels.model_label("a-model-without-a-title"), "a-model-without-a-title"),
        (labels.quantizer_label("int8"), "int8 (keys per token)"),
        (labels.quantizer_label("fp8"), "fp8"),
        (labels.budget_label("none"), "1x"),
        (labels.budget_label("256"), "256 slots"),
        (
            labels.arm_label({"method": "full", "budget": "none", "quantizer": "none", "arm": "full-again"}),
            "Full cache (again)",
        ),
        (
            labels.arm_label({"method": "full", "budget": "none", "quantizer": "int8", "arm": "full-int8"}),
            "Full cache, int8",
        ),
        (labels.arm_label({"method": "snapkv", "budget": "4x", "quantizer": "int8"}), "SnapKV 4x, int8"),
    ],
)
def test_names_and_numbers_have_one_spelling(made: str, shown: str) -> None:
    assert made == shown


def test_budgets_sort_from_the_full_cache_to_the_smallest() -> None:
    budgets = ["8x", "256", "10%", "none", "4x", "1024", "50%", "16x"]
    assert sorted(budgets, key=labels.budget_key) == ["none", "4x", "8x", "16x", "50%", "10%", "1024", "256"]


def test_models_are_called_by_the_titles_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert labels.model_label("smollm2-135m") == "SmolLM2-135M-Instruct"
    monkeypatch.chdir(tmp_path)
    assert labels.model_label("smollm2-135m") == "smollm2-135m"
