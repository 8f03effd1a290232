"""What a run costs on a GPU: forward passes and tokens per cell, and the hours that follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvatlas.files import read_json, write_json
from kvatlas.grid import config
from kvatlas.grid.cells import Cell, Work
from kvatlas.pipeline import cost, machine, plan
from kvatlas.pipeline.machine import Machine
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import staleness
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


def test_cpu_minutes_grow_with_passes_and_tokens_and_fall_with_a_faster_machine(smoke: Workflow) -> None:
    cells = list(smoke.grid.cells.values())
    slow, fast = Machine(1e10, 1e10), Machine(2e10, 2e10)
    starts = cost.CPU_START_SECONDS * sum(cell.kind != "prompts" for cell in cells) / 60
    work = cost.cpu_minutes(smoke, cells, slow) - starts
    assert work > 0
    assert cost.cpu_minutes(smoke, cells, fast) - starts == pytest.approx(work / 2)
    assert cost.cpu_minutes(smoke, cells[:20], slow) < cost.cpu_minutes(smoke, cells, slow)


def test_the_speed_of_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "resources").mkdir()
    first = machine.measured()
    assert first.flops_per_s > 1e8
    assert first.bytes_per_s > 1e8
    monkeypatch.setattr(machine, "_measure", lambda: pytest.fail("measured again"))
    assert machine.measured() == first
    other = read_json(machine.MEMORY) | {"of": "another processor"}
    write_json(machine.MEMORY, other)
    monkeypatch.setattr(machine, "_measure", lambda: Machine(1.0, 2.0))
    assert machine.measured() == Machine(1.0, 2.0)


def test_a_plan_says_what_is_left(smoke: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = smoke.grid.trial_cells()
    monkeypatch.setattr(staleness, "reasons", lambda current, cell: [] if cell.study == "needle" else ["gone"])
    left = plan.unfinished(smoke)
    assert {cell.output for cell in left if cell.arm} == {cell.output for cell in trials if cell.study != "needle"}
    assert {cell.study for cell in left if cell.kind == "prefill"} == {"passkey"}
    text = plan.describe(smoke)
    assert f"left: {sum(1 for cell in left if cell.arm)} of {len(trials)} cells with trials; about " in text
