"""What a run costs on a GPU: forward passes and tokens per cell, and the hours that follow."""

from __future__ import annotations

import pytest

from kvatlas.grid import config
from kvatlas.pipeline import cost
from kvatlas.pipeline.cost import Effort
from kvatlas.pipeline.workflow import Workflow
from tests.support.places import ROOT

SHAPE = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}


@pytest.fixture(scope="module")
def smoke() -> Workflow:
    return Workflow(config.load(ROOT / "config/smoke.yaml"), ROOT)


def cell_of(workflow: Workflow, kind: str, arm: str, group: str):
    (found,) = (c for c in workflow.grid.cells.values() if (c.kind, c.arm, c.group) == (kind, arm, group))
    return found


def test_a_prefill_reads_every_prompt_and_decodes_the_reference(smoke):
    # Two depths, one seed per shard: two prompts of 256 tokens at once, 16 new tokens.
    assert cost.effort(smoke, cell_of(smoke, "prefill", "", "aware-256-0")) == Effort(2 + 16, 2 * (256 + 16))


def test_a_prefill_in_chunks_has_a_pass_per_chunk(smoke):
    assert cost.effort(smoke, cell_of(smoke, "prefill", "", "aware-noise-192-0")).forwards == 192 // 64 + 8


def test_a_stream_has_a_pass_per_block(smoke):
    assert cost.effort(smoke, cell_of(smoke, "online_lm", "full", "online-256-0")) == Effort(256 // 32, 256)


def test_seconds_grow_with_passes_and_tokens():
    start = Effort(0, 0).seconds(SHAPE)
    assert start == cost.START_SECONDS
    assert start < Effort(10, 0).seconds(SHAPE) < Effort(10, 10**6).seconds(SHAPE)


def test_hours_are_those_of_all_cells_that_run_a_model(smoke):
    cells = [cell for cell in smoke.grid.cells.values() if cell.kind != "prompts"]
    shape = smoke.models["smollm2-135m"]["shape"]
    seconds = sum(cost.effort(smoke, cell).seconds(shape) for cell in cells)
    assert cost.gpu_hours(smoke) == pytest.approx(seconds / 3600)
    assert seconds > cost.START_SECONDS * len(cells)
