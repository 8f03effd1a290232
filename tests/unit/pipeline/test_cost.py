"""What a run costs on a GPU: forward passes and tokens per cell, and the hours that follow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvatlas.grid import config
from kvatlas.grid.cells import Cell, Work
from kvatlas.pipeline import cost
from kvatlas.pipeline.workflow import Workflow
from tests.support.places import ROOT

SHAPE = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}


@pytest.fixture(scope="module")
def smoke() -> Workflow:
    return Workflow(config.load(ROOT / "config/smoke.yaml", ROOT), ROOT)


def work_of(workflow: Workflow, kind: str, arm: str, group: str) -> tuple[int, int]:
    cells = workflow.grid.cells.values()
    (work,) = (cell.work for cell in cells if (cell.kind, cell.arm, cell.group) == (kind, arm, group))
    return work.forwards, work.tokens


def test_a_prefill_reads_every_prompt_and_decodes_the_reference(smoke: Workflow) -> None:
    # Two depths, one seed per shard: two prompts of 256 tokens at once, 16 new tokens.
    assert work_of(smoke, "prefill", "", "aware-256-0") == (2 + 16, 2 * (256 + 16))


def test_a_prefill_in_chunks_has_a_pass_per_chunk(smoke: Workflow) -> None:
    assert work_of(smoke, "prefill", "", "aware-noise-192-0")[0] == 192 // 64 + 8


def test_a_stream_has_a_pass_per_block(smoke: Workflow) -> None:
    assert work_of(smoke, "online_lm", "full", "online-256-0") == (256 // 32, 256)


def test_an_arm_decodes_its_answer_and_scores_the_reference_and_the_right_one_at_once(smoke: Workflow) -> None:
    assert work_of(smoke, "recall", "snapkv-4x", "aware-256-0") == (16 + 2, 3 * 2 * 16)


def test_a_suite_streams_its_prompts_first(smoke: Workflow) -> None:
    # Nine prompts of 176 tokens in blocks of 32, then four tokens each.
    assert work_of(smoke, "task_suite", "full", "suite-176-0") == (4 + 2 + 6, 3 * 9 * 4 + 9 * 176)


def test_seconds_grow_with_passes_and_tokens() -> None:
    cell = Cell("recall", "needle", "m", "full", "g", {}, "o")
    idle, some, many = (replace(cell, work=Work(1, 1, forwards=f, tokens=t)) for f, t in ((0, 0), (10, 0), (10, 10**6)))
    assert cost.cell_seconds(idle, SHAPE) == cost.START_SECONDS
    assert cost.cell_seconds(idle, SHAPE) < cost.cell_seconds(some, SHAPE) < cost.cell_seconds(many, SHAPE)


def test_hours_are_those_of_all_cells_that_run_a_model(smoke: Workflow) -> None:
    cells = [cell for cell in smoke.grid.cells.values() if cell.kind != "prompts"]
    shape = smoke.sizes.shape("smollm2-135m")
    seconds = sum(cost.cell_seconds(cell, shape) for cell in cells)
    assert cost.gpu_hours(smoke) == pytest.approx(seconds / 3600)
    assert seconds > cost.START_SECONDS * len(cells)
