"""Reading results: rows of one model and mode, and nothing where a study was not run."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.analysis.studies.validity import is_repeat
from kvatlas.reporting import evidence, recall_tables, reproduction, validity
from kvatlas.reporting.sections import needle
from kvatlas.reporting.study_rows import groups, models_of, rows_of

MODEL, MODE = "smollm2-135m", "aware"


def test_missing_studies_give_empty_tables() -> None:
    empty: dict[str, Any] = {"studies": {}}
    for table in (
        recall_tables.summary(empty, {}, "needle", MODEL, MODE),
        needle.by_depth(empty, MODEL, MODE),
        recall_tables.contrasts(empty, "needle", MODEL, MODE),
        needle.retention(empty, MODEL, MODE),
        validity.gates(empty),
        validity.noise_floor(empty),
        evidence.claims(empty, evidence.VERDICTS),
        reproduction.published(empty),
        reproduction.not_reproduced(empty),
    ):
        assert not table
    assert groups(empty, "needle") == []


def test_rows_are_those_of_the_model_and_mode() -> None:
    rows = [{"model": model, "mode": mode} for model in "ba" for mode in ("aware", "agnostic", "no_context")]
    results: dict[str, Any] = {"studies": {"needle": {"rows": rows, "gates": None}, "passkey": None}}
    assert rows_of(results, "needle") == rows
    assert rows_of(results, "needle", model="a", mode="aware") == [{"model": "a", "mode": "aware"}]
    assert rows_of(results, "needle", "gates") == rows_of(results, "passkey") == rows_of(results, "radar") == []
    assert models_of(rows) == ["a", "b"]


def test_groups_leave_the_question_without_context_out_and_put_the_aware_mode_first() -> None:
    rows = [{"model": "m", "mode": mode} for mode in ("no_context", "agnostic", "aware")]
    assert groups({"studies": {"needle": {"rows": rows}}}, "needle") == [("m", "aware"), ("m", "agnostic")]


@pytest.mark.parametrize(
    ("arm", "quantizer", "repeat"),
    [("full", "none", False), ("full-again", "none", True), ("full-int8", "int8", False)],
)
def test_a_repeat_is_the_unquantized_full_cache_under_another_name(arm: str, quantizer: str, repeat: bool) -> None:
    row = {"method": "full", "budget": "none", "quantizer": quantizer, "arm": arm}
    assert is_repeat(row) == repeat
    assert not is_repeat(row | {"method": "snapkv", "budget": "4x"})
