"""The section on long-context tasks: macro averages with peaks, tasks with their gates, scores by question number."""

from __future__ import annotations

from typing import Any

from kvatlas.reporting.sections import ruler


def lines(table: Any) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row.cells, strict=True)) for row in table.rows]


def test_the_main_table_shows_scores_differences_and_the_peak_beside_what_stays(results: dict[str, Any]) -> None:
    shown = {line["Arm"]: line for line in lines(ruler.macro_table(results, "smollm2-135m", "aware"))}
    assert list(shown) == ["full", "snapkv-4x", "random-4x", "snapkv-8x"]
    full, snapkv = shown["full"], shown["snapkv-4x"]
    assert (full["Mean score"], full["Against full (points)"]) == ("100.0%", "–")
    # Scores 1 and 0.25 alternate between seeds.
    assert (snapkv["Mean score"], snapkv["Against full (points)"]) == ("62.5%", "−37.5")
    assert (snapkv["Resident (MiB)"], snapkv["Peak (MiB)"], snapkv["Of bf16 cache"]) == ("0.50", "2.00", "0.25x")
    assert shown["random-4x"]["Against SnapKV (points)"] == "0.0"


def test_a_task_that_failed_its_gate_is_named_and_out_of_the_mean(results: dict[str, Any]) -> None:
    (first, *_) = lines(ruler.task_table(results, "smollm2-135m", "aware"))
    assert first["Common words (gate failed)"] == "50.0%"
    assert first["Variable tracking"] == "100.0%"
    assert ruler.averaged(results, "smollm2-135m", "aware") == "single needle, noise, variable tracking"


def test_scores_by_question_number_are_shown_where_several_were_asked(results: dict[str, Any]) -> None:
    assert not ruler.question_table(results, "smollm2-135m", "aware")
    shown = {line["Budget"]: line for line in lines(ruler.question_table(results, "smollm2-135m", "reuse"))}
    scores = [shown["8x"][f"Question {number}"] for number in (1, 2, 3, 4)]
    assert scores == ["62.5%", "37.5%", "29.2%", "25.0%"]


def test_a_schedule_is_spelled_and_its_groups_stand_apart(results: dict[str, Any]) -> None:
    context = ruler.context(results, {}, {"stream_block": 64})
    assert context is not None
    names = [group["name"].partition(", ")[2] for group in context["groups"]]
    assert "question-aware, evicted after every block" in names
    assert "several questions, each to the compressed cache" in names
    assert ruler.context({"studies": {}}, {}, {}) is None
