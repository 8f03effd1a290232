"""The long-context study's cells: groups per task, mode, schedule and length, one prefill each, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.grid import config, unfold
from kvatlas.grid.cells import Cell
from kvatlas.tasks.ruler import all_tasks
from tests.support.places import ROOT

STUDY: dict[str, Any] = {
    "tasks": ["niah_single_1", "niah_multikey_2", "cwe"],
    "contexts": [1024],
    "seeds": 4,
    "seeds_per_shard": 2,
    "text": "lee-news",
    "n_sinks": 4,
    "n_recent": 32,
    "modes": {"agnostic": {"methods": ["random", "snapkv"], "budgets": ["4x"]}},
}


def cells(**changes: Any) -> list[Cell]:
    whole = {"run": "r", "title": "R", "models": ["smollm2-135m"], "embedder": "all-minilm-l6-v2"}
    study = {key: value for key, value in (STUDY | changes).items() if value is not None}
    return list(unfold.grid(config.validate(whole | {"studies": {"ruler": study}}, ROOT)).cells.values())


def test_a_group_is_prefilled_once_for_all_arms_and_asked_without_its_context_by_the_full_cache() -> None:
    made = cells()
    groups = {cell.group for cell in made}
    tasks = STUDY["tasks"]
    assert groups == {
        f"{mode}-{task}-1024-{shard}" for mode in ("agnostic", "no_context") for task in tasks for shard in (0, 1)
    }
    assert sum(cell.kind == "prefill" for cell in made) == sum(cell.kind == "prompts" for cell in made) == len(groups)
    arms = {group: [cell.arm for cell in made if cell.group == group and cell.arm] for group in groups}
    assert arms["agnostic-cwe-1024-1"] == ["full", "random-4x", "snapkv-4x"]
    assert arms["no_context-cwe-1024-1"] == ["full"]
    (prompts,) = (cell for cell in made if cell.kind == "prompts" and cell.group == "agnostic-cwe-1024-1")
    assert (prompts.spec["task"], prompts.spec["seeds"]) == ("ruler.cwe", [2, 3])
    assert "text" in prompts.inputs
    assert {cell.spec["new_tokens"] for cell in made if cell.arm and cell.spec["task"] == "cwe"} == {120}


def test_a_streamed_group_has_no_prefill_and_a_block() -> None:
    made = [cell for cell in cells(schedules=["every_block"], stream_block=64) if cell.group.startswith("agnostic")]
    assert {cell.kind for cell in made} == {"prompts", "ruler"}
    assert {cell.group for cell in made} >= {"agnostic-blocks-cwe-1024-0"}
    assert {(cell.spec["schedule"], cell.spec["block"]) for cell in made if cell.arm} == {("every_block", 64)}


def test_several_questions_are_asked_of_the_tasks_that_have_them() -> None:
    arms = STUDY["modes"]["agnostic"]
    made = cells(modes={"reuse": arms, "turns": arms})
    asked = {cell.spec["task"] for cell in made if cell.arm and cell.spec["mode"] != "no_context"}
    assert asked == {"niah_multikey_2"}
    assert {name for name, task in all_tasks().items() if task.reuse} == {f"niah_multikey_{n}" for n in (1, 2, 3)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tasks": ["niah_single_9"]}, r"studies\.ruler\.tasks\[0\].*niah_single_9"),
        ({"text": None}, r"studies\.ruler\.text: this key is missing; task cwe draws its contexts from it"),
        ({"text": "lee-newz"}, r"studies\.ruler\.text: .*lee-newz"),
        ({"tasks": ["qa"]}, r"studies\.ruler\.documents: this key is missing; task qa draws its contexts from it"),
        ({"tasks": ["qa"], "documents": "squat"}, r"studies\.ruler\.documents: .*squat"),
        (
            {"tasks": ["dataset"], "documents": "lee-news"},
            r"studies\.ruler\.metric: this key is missing; task dataset is",
        ),
        ({"contexts": [8190]}, r"studies\.ruler\.contexts: 8190 tokens and 128 new tokens pass the 8192 positions"),
        (
            {"tasks": ["vt"], "modes": {"reuse": STUDY["modes"]["agnostic"]}},
            r"studies\.ruler\.modes\.reuse: no task has several questions per context; name one of niah_multikey_1",
        ),
    ],
)
def test_what_cannot_be_run_is_refused_by_its_key(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(KvatlasError, match=words):
        cells(**changes)
