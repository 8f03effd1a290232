"""The section on quantizers: one line per quantizer and granularity, and how far the largest key channel stands out."""

from __future__ import annotations

from typing import Any

from kvatlas.reporting import labels
from kvatlas.reporting.sections import quantizer_error
from tests.support import all_studies


def test_integers_are_shown_at_both_granularities_and_floats_at_none(results: dict[str, Any]) -> None:
    (table,) = quantizer_error.main_tables(results, {})
    scaled = [row.cells[:2] for row in table.rows]
    assert ("int8", "keys and values per token") in scaled
    assert ("int8", "keys and values per channel") in scaled
    assert ("fp16", "–") in scaled


def test_the_section_says_how_far_key_channels_stand_out(results: dict[str, Any]) -> None:
    context = quantizer_error.context(results, {}, {})
    assert context is not None
    assert (context["context"], context["chunks"]) == ("64", "3")
    assert context["outliers"] == f"{labels.model_label(all_studies.MODEL)} 7.00x"
