"""Estimates of memory, and batches that fit a stated memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.grid.cells import RECALL
from kvatlas.grid.memory import Footprint, footprint, token_bytes
from kvatlas.pipeline.workflow import Workflow
from tests.support.checkout import TOY
from tests.support.places import ROOT

SHAPE = {"layers": 30, "heads": 9, "kv_heads": 3, "head_dim": 64}


def workflow(**more: Any) -> Workflow:
    config = copy.deepcopy(TOY) | {"device": "cpu", "dtype": "fp32"} | more
    config["studies"]["needle"] |= {"seeds_per_shard": 2, "noise_batch": 1}
    return Workflow(config, ROOT)


def test_a_token_takes_keys_and_values_of_every_layer_and_kv_head() -> None:
    assert token_bytes(SHAPE, 4) == 2 * 30 * 3 * 64 * 4


def test_an_estimate_grows_with_the_context_the_answer_and_the_batch() -> None:
    base = footprint(SHAPE, 4, 512, 16)
    assert footprint(SHAPE, 4, 1024, 16).per_prompt > base.per_prompt
    assert footprint(SHAPE, 4, 512, 32).per_prompt > base.per_prompt
    assert footprint(SHAPE, 2, 512, 16).fixed < base.fixed
    assert base.of(3) > base.of(2)


def test_the_largest_batch_that_fits_is_found() -> None:
    print_of = Footprint(fixed=1000.0, per_prompt=100.0)
    assert print_of.batch_within(1350, "c") == 3
    assert print_of.of(3) <= 1350 < print_of.of(4)
    with pytest.raises(
        KvatlasError, match=r"memory_mb: 1050 MB cannot hold one prompt of cell c; it takes about 1101 MB"
    ):
        print_of.batch_within(1050, "c")


def test_enough_memory_changes_no_spec() -> None:
    plain, stated = workflow(), workflow(memory_mb=64_000)
    for output, cell in plain.grid.cells.items():
        assert stated.current.spec(stated.grid.cells[output]) == plain.current.spec(cell)


def test_little_memory_splits_the_measured_batch_and_nothing_else() -> None:
    plain = workflow()
    aware = next(cell for cell in plain.grid.of_kind(RECALL) if cell.arm == "random-4x")
    limit = plain.sizes.cell_memory(aware) - 1
    split = workflow(memory_mb=limit)
    assert split.current.spec(aware)["rows"] == 3
    assert split.sizes.cell_memory(aware) <= limit
    changed = [
        output for output, cell in plain.grid.cells.items() if split.current.spec(cell) != plain.current.spec(cell)
    ]
    # Four prompts to a group: the repeat that measures the noise floor has a batch size of its own, and a question alone
    # is short.
    assert {path.split("/")[-2] for path in changed} == {c.arm for c in plain.grid.of_kind(RECALL)} - {"full-batch1"}
    assert all("/no_context-" not in path for path in changed)


def test_a_memory_that_holds_nothing_is_refused_before_any_job() -> None:
    with pytest.raises(KvatlasError, match="memory_mb: 100 MB cannot hold one prompt of cell recall needle"):
        workflow(memory_mb=100).sizes.require_memory()
