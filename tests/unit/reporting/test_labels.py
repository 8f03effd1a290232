"""Names and numbers have one spelling, and budgets one order."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.reporting import labels
from tests.support.places import ROOT


@pytest.mark.parametrize(
    ("spelled", "shown"),
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
def test_names_and_numbers_have_one_spelling(spelled: str, shown: str) -> None:
    assert spelled == shown


def test_budgets_sort_from_the_full_cache_to_the_smallest() -> None:
    budgets = ["8x", "256", "10%", "none", "4x", "1024", "50%", "16x"]
    assert sorted(budgets, key=labels.budget_key) == ["none", "4x", "8x", "16x", "50%", "10%", "1024", "256"]


def test_models_are_called_by_the_titles_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert labels.model_label("smollm2-135m") == "SmolLM2-135M-Instruct"
    monkeypatch.chdir(tmp_path)
    assert labels.model_label("smollm2-135m") == "smollm2-135m"
