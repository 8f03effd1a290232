"""The quantizer error table: errors are pooled as ratios of sums, in both norms."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.analysis.studies import quantizer_error
from kvatlas.errors import KvatlasError
from tests.support.suite import error_trial as trial


@pytest.fixture
def section() -> dict[str, Any]:
    trials = [trial("int8", chunk, [0.1 + 0.01 * chunk, 0.2]) for chunk in range(4)]
    trials += [trial("fp8", chunk, [0.2, 0.5 + 0.02 * chunk]) for chunk in range(4)]
    trials += [trial("int4", chunk, [1.0, 9.0]) for chunk in range(4)]
    trials += [trial("int4", chunk, [0.5, 0.5], granularity="channel", own=False) for chunk in range(4)]
    return quantizer_error.aggregate(trials)


def test_errors_are_ratios_of_sums_over_layers_and_chunks(section):
    row = next(row for row in section["rows"] if row["arm"] == "int4")
    assert row["key_l1"] == pytest.approx(10 / 40)
    assert row["key_frobenius"] == pytest.approx((82 / 1000) ** 0.5)
    layers = [r for r in section["by_layer"] if r["arm"] == "int4" and r["own"]]
    assert [layer["key_l1"] for layer in layers] == pytest.approx([0.1, 0.3])
    assert [layer["key_frobenius"] for layer in layers] == pytest.approx([0.1, 0.3])
    assert (row["saturated"], row["key_outlier"]) == (4, 7.0)


def test_rows_hold_a_quantizer_s_own_granularity_and_the_other_one_stands_beside(section):
    assert [row["arm"] for row in section["rows"]] == ["int8", "fp8", "int4"]
    both = {row["granularity"]: row["key_l1"] for row in section["granularities"] if row["arm"] == "int4"}
    assert both == {"token": pytest.approx(0.25), "channel": pytest.approx(1 / 40)}


def test_quantizers_are_compared_chunk_by_chunk(section):
    keys = ("fp8", "int8", "key_l1")
    row = next(r for r in section["contrasts"] if (r["arm"], r["versus"], r["metric"]) == keys)
    assert row["diff"] == pytest.approx((0.7 + 0.03 - 0.3 - 0.015) / 40, rel=1e-6)
    assert row["n_clusters"] == 4
    assert row["ci"][0] > 0


def test_other_chunks_and_empty_studies_are_refused():
    with pytest.raises(KvatlasError, match="different chunks"):
        quantizer_error.aggregate([trial("int8", 0, [1, 1]), trial("fp8", 1, [1, 1])])
    with pytest.raises(KvatlasError, match="at least one trial"):
        quantizer_error.aggregate([])
