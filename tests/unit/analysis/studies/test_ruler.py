"""Claims about kvatlas.analysis.studies.ruler, on trials whose tables are known by construction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvatlas.analysis.studies.recall_contrasts import Pair
from kvatlas.analysis.studies.ruler import aggregate
from kvatlas.errors import KvatlasError
from tests.support.ruler import trials_of

EASY, HARD = "niah_single_1", "cwe"


def section(**score: Callable[[str, int, int], float]) -> dict[str, Any]:
    trials = [row for arm, of in score.items() for row in trials_of(arm.replace("_4x", "-4x"), of)]
    return aggregate(trials + trials_of("full", lambda *_: 0.0, mode="no_context"))


def rows(table: list[dict[str, Any]], **fields: Any) -> list[dict[str, Any]]:
    return [row for row in table if all(row[key] == value for key, value in fields.items())]


def test_a_task_weighs_the_same_whatever_its_number_of_prompts_and_the_mean_is_over_tasks_past_their_gates() -> None:
    made = [
        *trials_of("full", lambda *_: 1.0),
        *trials_of("random-4x", lambda task, *_: 1.0 if task == EASY else 0.0, tasks=(EASY, "vt")),
        *trials_of("random-4x", lambda *_: 0.5, tasks=(HARD,)),
        *trials_of("full", lambda *_: 0.0, mode="no_context"),
    ]
    (row,) = rows(aggregate(made)["rows"], arm="random-4x")
    assert row["tasks"] == ["cwe", "niah_single_1", "vt"]
    assert row["score"] == pytest.approx((1 + 0 + 0.5) / 3)
    assert row["gate_passed"]


def test_a_task_that_the_full_cache_does_not_master_is_shown_and_not_averaged() -> None:
    found = section(full=lambda task, *_: 0.5 if task == HARD else 1.0, random_4x=lambda *_: 0.25)
    (row,) = rows(found["rows"], arm="random-4x")
    assert HARD not in row["tasks"]
    assert not rows(found["tasks"], arm="random-4x", task=HARD)[0]["gate_passed"]
    gate = rows(found["gates"], task=HARD)[0]
    assert (gate["passed"], gate["full_recall"], gate["no_context_recall"]) == (False, 0.5, 0.0)
    assert not rows(found["contrasts"], arm="random-4x", metric=f"score_{HARD}")[0]["gate_passed"]


def test_where_no_task_passes_the_mean_is_over_all_and_says_so() -> None:
    found = section(full=lambda *_: 0.5, random_4x=lambda *_: 0.5)
    assert {row["gate_passed"] for row in found["rows"]} == {False}
    assert len(found["rows"][0]["tasks"]) == 3


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95, 1.0])
def test_intervals_stay_inside_zero_and_one_and_hold_the_score(share: float) -> None:
    found = section(full=lambda *_: 1.0, random_4x=lambda task, seed, _: share if seed % 2 else 1.0)
    for table in ("rows", "tasks"):
        for row in found[table]:
            low, high = row["score_ci"]
            assert 0.0 <= low <= row["score"] <= high <= 1.0
            assert low < high


def test_differences_are_paired_within_context_draws_and_the_primary_family_is_the_mean_against_full() -> None:
    found = section(
        full=lambda *_: 1.0,
        snapkv_4x=lambda task, seed, _: 1.0 - 0.25 * (seed % 2),
        random_4x=lambda task, seed, _: 0.5 - 0.25 * (seed % 2),
    )
    (primary,) = rows(found["contrasts"], arm="random-4x", versus="full", metric="score")
    assert (primary["family"], primary["diff"]) == ("primary", pytest.approx(-0.625))
    assert primary["p_holm"] is not None
    (other,) = rows(found["contrasts"], arm="random-4x", versus="snapkv-4x", metric="score")
    # The two differ by the same in every draw: the interval is the one for no disagreement.
    assert (other["family"], other["diff"], other["se"]) == ("other", pytest.approx(-0.5), 0.0)
    assert {row["metric"] for row in found["contrasts"]} == {"score", *(f"score_{t}" for t in (EASY, HARD, "vt"))}


def test_a_claim_s_pair_on_one_task_is_answered() -> None:
    made = [*trials_of("full", lambda *_: 1.0), *trials_of("random-4x", lambda *_: 0.5)]
    made += trials_of("full", lambda *_: 0.0, mode="no_context")
    found = aggregate(made, {"pairs": [Pair("full", "random-4x", "score_vt", None)]})
    (row,) = rows(found["contrasts"], arm="full", versus="random-4x", metric="score_vt")
    assert row["diff"] == pytest.approx(0.5)


def test_scores_by_question_number_show_decay_and_questions_of_one_context_are_one_cluster() -> None:
    made = [*trials_of("full", lambda *_: 1.0, mode="reuse", questions=4)]
    made += trials_of("snapkv-4x", lambda task, seed, number: 1.0 / number, mode="reuse", questions=4)
    made += trials_of("full", lambda *_: 0.0, mode="no_context")
    found = aggregate(made)
    decay = [row["score"] for row in rows(found["questions"], arm="snapkv-4x")]
    assert decay == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])
    (row,) = rows(found["rows"], arm="snapkv-4x")
    assert (row["n"], row["n_clusters"]) == (3 * 6 * 4, 3 * 6)


def test_what_is_streamed_in_blocks_is_a_mode_of_its_own_with_its_peak() -> None:
    made = [*trials_of("full", lambda *_: 1.0), *trials_of("random-4x", lambda *_: 1.0)]
    made += trials_of("full", lambda *_: 1.0, schedule="every_block")
    made += [row | {"peak_bytes": 2**20} for row in trials_of("random-4x", lambda *_: 0.5, schedule="every_block")]
    made += trials_of("full", lambda *_: 0.0, mode="no_context")
    found = aggregate(made)
    assert {row["mode"] for row in found["rows"]} == {"aware", "aware-every_block"}
    (row,) = rows(found["rows"], arm="random-4x", mode="aware-every_block")
    assert (row["score"], row["peak_mib"]) == (0.5, 1.0)


def test_arms_that_did_not_see_the_same_prompts_are_refused() -> None:
    made = [*trials_of("full", lambda *_: 1.0), *trials_of("random-4x", lambda *_: 1.0)]
    with pytest.raises(KvatlasError, match="arm random-4x did not see the prompts"):
        aggregate(made[:-1])
    with pytest.raises(KvatlasError, match="no full cache"):
        aggregate(trials_of("random-4x", lambda *_: 1.0))
    with pytest.raises(KvatlasError, match="at least one trial"):
        aggregate([])
