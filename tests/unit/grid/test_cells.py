"""A configuration unfolds into exactly these cells, with these specs and paths."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvatlas.grid import config, unfold
from kvatlas.grid.cells import PREFILL, Grid
from kvatlas.grid.studies import all_studies
from kvatlas.grid.study import StudyContext
from tests.support.places import ROOT

HEAD: dict[str, Any] = {
    "run": "r",
    "title": "t",
    "models": ["smollm2-135m"],
    "embedder": "all-minilm-l6-v2",
    "methods": {"snapkv": {"window": 24}, "indexed": {"policy": "streaming_llm", "reindex": True}},
}
NEEDLE: dict[str, Any] = {
    "contexts": [512],
    "seeds": 3,
    "seeds_per_shard": 2,
    "depths": [10, 90],
    "new_tokens": 24,
    "n_sinks": 4,
    "n_recent": 32,
    "modes": {"aware": {"methods": ["snapkv", "indexed", "emeans_pre_rope"], "budgets": ["4x", "10%", "256"]}},
}


def grid_of(**blocks: Any) -> Grid:
    return unfold.grid(HEAD | {"studies": blocks})


def one(grid: Grid, output: str) -> dict[str, Any]:
    return dict(grid.cells[output].spec)


def test_needle_has_prompts_and_prefill_per_group_and_a_cell_per_arm() -> None:
    grid = grid_of(needle=NEEDLE)
    arms = ["full"] + [
        f"{method}-{budget}"
        for method in ("snapkv", "indexed", "emeans_pre_rope")
        for budget in ("4x", "10pct", "256slots")
    ]
    folder = "needle/smollm2-135m"
    expected = set()
    for group in ("aware-512-0", "aware-512-1", "no_context-512-0", "no_context-512-1"):
        expected |= {f"results/r/prompts/{folder}/{group}.jsonl", f"results/r/prefill/{folder}/{group}.json"}
        expected |= {f"results/r/cells/{folder}/{arm}/{group}.jsonl" for arm in (arms if group[0] == "a" else ["full"])}
    assert set(grid.cells) == expected


def test_a_recall_spec_holds_all_that_decides_its_numbers() -> None:
    cell = grid_of(needle=NEEDLE).cells["results/r/cells/needle/smollm2-135m/indexed-10pct/aware-512-1.jsonl"]
    assert cell.spec == {
        "kind": "recall", "study": "needle", "model": "smollm2-135m", "arm": "indexed-10pct", "method": "indexed",
        "policy": {"name": "streaming_llm", "reindex": True}, "budget": "10%", "n_sinks": 4, "n_recent": 32,
        "skip_layers": [], "quantizer": "none", "mode": "aware", "context": 512, "shard": 1, "new_tokens": 24,
        "device": "auto", "dtype": "auto",
    }  # fmt: skip
    assert cell.inputs == {
        "model": "resources/models/smollm2-135m/provenance.json",
        "prompts": "results/r/prompts/needle/smollm2-135m/aware-512-1.jsonl",
        "prefill": "results/r/prefill/needle/smollm2-135m/aware-512-1.json",
    }


def test_the_full_cache_has_no_budget_and_a_question_without_context_has_no_other_arm() -> None:
    grid = grid_of(needle=NEEDLE)
    full = one(grid, "results/r/cells/needle/smollm2-135m/full/no_context-512-0.jsonl")
    assert (full["method"], full["policy"], full["budget"], full["mode"]) == (
        "full",
        {"name": "full"},
        "none",
        "no_context",
    )
    assert [cell.arm for cell in grid.group("needle", "smollm2-135m", "no_context-512-0")] == ["full"]


def test_a_prefill_keeps_the_windows_of_all_methods_defaults_included() -> None:
    spec = one(grid_of(needle=NEEDLE), "results/r/prefill/needle/smollm2-135m/aware-512-0.json")
    assert spec == {
        "kind": "prefill", "study": "needle", "model": "smollm2-135m", "mode": "aware", "context": 512, "shard": 0,
        "new_tokens": 24, "block": 0, "windows": [16, 24], "device": "auto", "dtype": "auto",
    }  # fmt: skip


def test_a_prefill_keeps_statistics_of_queries_only_where_a_method_reads_them() -> None:
    modes = {"aware": [{"methods": ["expected_attention"], "budgets": ["4x"]}]}
    spec = one(grid_of(needle=NEEDLE | {"modes": modes}), "results/r/prefill/needle/smollm2-135m/aware-512-0.json")
    assert spec["queries"] is True
    assert spec["windows"] == []


def test_prompts_of_a_shard_have_its_seeds_and_all_depths() -> None:
    spec = one(grid_of(needle=NEEDLE), "results/r/prompts/needle/smollm2-135m/aware-512-1.jsonl")
    assert spec == {
        "kind": "prompts", "study": "needle", "task": "needle", "model": "smollm2-135m", "mode": "aware", "context": 512,
        "seeds": [2], "depths": [10, 90], "haystack": "sentences",
    }  # fmt: skip


def test_a_corpus_is_an_input_of_prompts_that_have_a_haystack() -> None:
    grid = grid_of(needle=NEEDLE | {"haystack": "corpus", "text": "lee-news"})
    folder = "results/r/prompts/needle/smollm2-135m"
    assert grid.cells[f"{folder}/aware-512-0.jsonl"].inputs["text"] == "resources/text/lee-news.txt"
    assert "text" not in grid.cells[f"{folder}/no_context-512-0.jsonl"].inputs


def test_seeds_may_differ_between_models() -> None:
    block = NEEDLE | {"models": ["a", "b"], "seeds": {"a": 3, "b": 1}}
    grid = grid_of(needle=block)
    assert {group for _, model, group in grid.groups() if model == "b"} == {"aware-512-0", "no_context-512-0"}
    assert len({group for _, model, group in grid.groups() if model == "a"}) == 4


def test_seeds_may_differ_between_contexts() -> None:
    block = NEEDLE | {"contexts": [512, 1024], "seeds": {"512": 3, "1024": 1}}
    prompts = {"512": 0, "1024": 0, "no_context": 0}
    for cell in grid_of(needle=block).of_kind(PREFILL):
        mode, context, _ = cell.group.split("-")
        prompts[context if mode == "aware" else mode] += cell.work.prompts
    assert prompts == {"512": 3 * 2, "1024": 1 * 2, "no_context": 4 * 2}  # seeds, depths


def test_quantizers_and_protections_are_crossed_with_budgets_and_the_full_cache_gets_each_quantizer() -> None:
    block = NEEDLE | {
        "protections": {"bare": {"n_sinks": 0, "n_recent": 0, "skip_layers": [0, 1]}},
        "modes": {
            "aware": [
                {"methods": ["random"], "budgets": ["4x"], "quantizers": ["none", "int8"]},
                {"methods": ["snapkv"], "budgets": ["10%"], "protections": ["base", "bare"]},
            ]
        },
    }
    grid = grid_of(needle=block)
    assert [cell.arm for cell in grid.group("needle", "smollm2-135m", "aware-512-0")] == [
        "full", "full-int8", "random-4x", "random-4x-int8", "snapkv-10pct", "snapkv-10pct-bare",
    ]  # fmt: skip
    bare = one(grid, "results/r/cells/needle/smollm2-135m/snapkv-10pct-bare/aware-512-0.jsonl")
    assert (bare["protection"], bare["n_sinks"], bare["n_recent"], bare["skip_layers"]) == ("bare", 0, 0, [0, 1])


def test_an_entry_may_narrow_the_contexts_of_its_mode() -> None:
    block = NEEDLE | {"contexts": [512, 1024], "modes": {"agnostic": NEEDLE["modes"]["aware"] | {"contexts": [512]}}}
    groups = {group for _, _, group in grid_of(needle=block).groups()}
    assert {group for group in groups if group.startswith("agnostic")} == {"agnostic-512-0", "agnostic-512-1"}


def test_the_noise_floor_is_the_full_cache_in_another_batch() -> None:
    grid = grid_of(needle=NEEDLE | {"noise_batch": 5, "contexts": [512, 1024]})
    spec = one(grid, "results/r/cells/needle/smollm2-135m/full-batch5/aware-512-0.jsonl")
    full = one(grid, "results/r/cells/needle/smollm2-135m/full/aware-512-0.jsonl")
    assert spec == full | {"arm": "full-batch5", "batch": 5}
    assert {cell.group for cell in grid.trial_cells() if cell.arm == "full-batch5"} == {"aware-512-0", "aware-512-1"}


def test_the_grid_does_not_depend_on_the_order_of_a_configuration_s_keys() -> None:
    modes = {"aware": NEEDLE["modes"]["aware"], "agnostic": NEEDLE["modes"]["aware"]}
    one = grid_of(needle=NEEDLE | {"noise_batch": 5, "modes": modes})
    other = grid_of(needle=NEEDLE | {"noise_batch": 5, "modes": dict(reversed(modes.items()))})
    assert set(one.cells) == set(other.cells)


def test_passkey_groups_carry_their_haystack() -> None:
    block = {key: value for key, value in NEEDLE.items() if key != "haystack"} | {"haystacks": ["noise", "corpus"]}
    grid = grid_of(passkey=block | {"text": "lee-news", "seeds": 1})
    assert [group for _, _, group in grid.groups()] == ["aware-noise-512-0", "aware-corpus-512-0", "no_context-512-0"]
    spec = one(grid, "results/r/prompts/passkey/smollm2-135m/aware-corpus-512-0.jsonl")
    assert spec["haystack"] == "corpus"


def test_online_lm_has_a_cell_per_arm_and_protocol() -> None:
    block = {
        "text": "lee-news", "tokens": 2048, "n_sinks": 4, "n_recent": 32, "protocols": ["online", "single"],
        "arms": {"methods": ["random"], "budgets": ["256"]},
    }  # fmt: skip
    grid = grid_of(online_lm=block)
    folder = "results/r/cells/online_lm/smollm2-135m"
    assert set(grid.cells) == {
        f"{folder}/{arm}/{group}.jsonl"
        for arm in ("full", "random-256slots")
        for group in ("online-2048-0", "single-2048-0")
    }
    cell = grid.cells[f"{folder}/random-256slots/online-2048-0.jsonl"]
    assert cell.spec == {
        "kind": "online_lm", "study": "online_lm", "model": "smollm2-135m", "arm": "random-256slots",
        "method": "random", "policy": {"name": "random"}, "budget": "256", "quantizer": "none", "n_sinks": 4,
        "n_recent": 32, "skip_layers": [], "protocol": "online", "text": "lee-news", "tokens": 2048, "block": 32,
        "device": "auto", "dtype": "auto",
    }  # fmt: skip
    assert set(cell.inputs) == {"model", "text"}


def test_in_an_online_study_the_newest_block_is_the_window_of_snapkv_and_not_of_tova() -> None:
    block = {
        "text": "lee-news", "tokens": 512, "block": 16, "n_sinks": 0, "n_recent": 0,
        "protections": {"fair": {"n_sinks": 4, "n_recent": 32}},
        "arms": [
            {"methods": ["snapkv", "tova"], "budgets": ["64"], "protections": ["base", "fair"]},
            {"methods": ["snapkv"], "budgets": ["64"], "protocols": ["prefill", "single"]},
            {"methods": ["snapkv"], "budgets": ["64"], "blocks": [1]},
        ],
    }  # fmt: skip
    folder = "results/r/cells/online_lm/smollm2-135m"
    grid = grid_of(online_lm=block)
    windows = {
        f"{cell.arm}/{cell.group}": cell.spec["policy"].get("window")
        for cell in grid.cells.values()
        if cell.arm != "full"
    }
    assert windows == {
        "snapkv-64slots/online-512-0": 16,
        "snapkv-64slots-fair/online-512-0": 16,
        "tova-64slots/online-512-0": None,
        "tova-64slots-fair/online-512-0": None,
        "snapkv-64slots/prefill-512-0": 16,
        "snapkv-64slots/single-512-0": 16,
        "snapkv-64slots/online-block-512-1": 1,
    }
    fair = one(grid, f"{folder}/snapkv-64slots-fair/online-512-0.jsonl")
    assert (fair["n_sinks"], fair["n_recent"], fair["protection"]) == (4, 32, "fair")
    assert one(grid, f"{folder}/full/online-block-512-1.jsonl")["block"] == 1


def test_attention_loss_has_a_cell_per_method() -> None:
    block = {"text": "lee-news", "context": 512, "prompts": 2, "queries": 4, "methods": ["random", "snapkv"]}
    grid = grid_of(attention_loss=block)
    spec = one(grid, "results/r/cells/attention_loss/smollm2-135m/snapkv/loss-512-0.jsonl")
    assert spec == {
        "kind": "attention_loss", "study": "attention_loss", "model": "smollm2-135m", "arm": "snapkv",
        "method": "snapkv", "policy": {"name": "snapkv", "window": 24}, "text": "lee-news", "context": 512,
        "prompts": 2, "queries": 4, "device": "auto", "dtype": "auto",
    }  # fmt: skip
    assert len(grid.cells) == 2


def test_task_suite_streams_shards_of_instances_with_and_without_context() -> None:
    block = {
        "context": 512, "instances": 3, "instances_per_shard": 2, "new_tokens": 24, "n_sinks": 4, "n_recent": 32,
        "arms": {"methods": ["random"], "budgets": ["50%"]},
    }  # fmt: skip
    grid = grid_of(task_suite=block)
    assert [group for _, _, group in grid.groups()] == [
        "suite-512-0", "suite-512-1", "no_context-512-0", "no_context-512-1",
    ]  # fmt: skip
    spec = one(grid, "results/r/cells/task_suite/smollm2-135m/random-50pct/suite-512-1.jsonl")
    assert (spec["schedule"], spec["block"], spec["shard"], spec["budget"]) == ("every_step", 32, 1, "50%")
    prompts = one(grid, "results/r/prompts/task_suite/smollm2-135m/suite-512-1.jsonl")
    assert prompts["instances"] == [2]


def test_quantizer_error_has_a_cell_per_quantizer() -> None:
    grid = grid_of(quantizer_error={"text": "lee-news", "context": 309, "prompts": 2, "quantizers": ["int8", "kivi4"]})
    assert [cell.output for cell in grid.trial_cells()] == [
        "results/r/cells/quantizer_error/smollm2-135m/full-int8/error-309-0.jsonl",
        "results/r/cells/quantizer_error/smollm2-135m/full-kivi4/error-309-0.jsonl",
    ]


def test_every_spec_is_one_line_of_json_and_no_two_cells_share_an_output() -> None:
    loaded = config.load(ROOT / "config/config.yaml", ROOT)
    cells = [
        cell
        for study in loaded["studies"]
        for cell in all_studies()[study].unfold(StudyContext(loaded, all_studies()[study], loaded["models"][0]))
    ]
    assert len({cell.output for cell in cells}) == len(cells)
    assert all(json.loads(json.dumps(cell.spec, sort_keys=True)) == cell.spec for cell in cells)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("results/r/prefill/needle/smollm2-135m/aware-512-0.safetensors", "prefill"),
        ("./results/r/cells/needle/smollm2-135m/full/aware-512-0.timing.json", "recall"),
        ("results/other/cells/needle/smollm2-135m/full/aware-512-0.jsonl", None),
    ],
)
def test_a_cell_is_found_by_its_files(path: str, kind: str | None) -> None:
    cell = grid_of(needle=NEEDLE).find(path)
    assert (cell.kind if cell else None) == kind


def test_the_part_of_a_study_is_a_configuration_with_the_same_cells() -> None:
    whole = HEAD | {"studies": {"needle": NEEDLE, "passkey": NEEDLE | {"haystacks": ["noise"]}}}
    part = unfold.study_part(whole, "needle")
    assert "title" not in part
    assert set(unfold.grid(part).cells) == {
        output for output, cell in unfold.grid(whole).cells.items() if cell.study == "needle"
    }
