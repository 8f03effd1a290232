"""Cards: front matter that the Hub accepts, as far as that can be checked offline, and a check that
refuses the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard
from huggingface_hub.repocard_data import model_index_to_eval_results

from kvatlas.errors import KvatlasError
from kvatlas.reporting.hub import cards

TITLE = 'Needles: "a study" # of | caches'


def front(rows: int = 1960) -> dict[str, Any]:
    return cards.front_matter(TITLE, ["smollm2-135m"], {"trials.parquet": rows})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "trials.parquet").write_bytes(b"PAR1")
    return tmp_path


def test_our_front_matter_is_valid_and_reads_back_as_it_was_written(folder: Path) -> None:
    text = cards.dump(front()) + "\n# Page\n"
    assert cards.validate(text, folder, rows=1960) == front()
    assert DatasetCard(text).data.to_dict()["pretty_name"] == TITLE


@pytest.mark.parametrize(
    ("rows", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (99_999, "10K<n<100K"),
        (10**6, "1M<n<10M"),
        (10**10, "1B<n<10B"),
    ],
)
def test_the_size_category_follows_the_rows(rows: int, category: str) -> None:
    assert cards.size_category(rows) == category
    assert category in cards.SIZE_CATEGORIES


def test_trials_are_the_first_and_default_configuration() -> None:
    front = cards.front_matter(TITLE, [], {"layers.parquet": 10, "trials.parquet": 20})
    assert [config["config_name"] for config in front["configs"]] == ["trials", "layers"]
    assert [config.get("default") for config in front["configs"]] == [True, None]
    assert front["size_categories"] == ["n<1K"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"license": "nonsense"}, "license 'nonsense' is not one that the Hub knows"),
        ({"size_categories": ["tiny"]}, "size_categories 'tiny' is not one"),
        ({"size_categories": ["n<1K"]}, "size_categories must be 1K<n<10K for 1960 rows"),
        ({"task_categories": ["forgetting"]}, "task_categories 'forgetting'"),
        ({"task_categories": "text-generation"}, "task_categories must be a list"),
        ({"tags": []}, "tags missing"),
        ({"tags": [3]}, "tags must be a list of words"),
        ({"pretty_name": ""}, "pretty_name missing"),
        ({"configs": [{"data_files": []}]}, "needs a config_name"),
        (
            {"configs": [{"config_name": "a", "data_files": [{"split": "test", "path": "gone.parquet"}]}]},
            "'gone.parquet' does not exist",
        ),
        ({"configs": [{"config_name": "a"}]}, "data file 'None' does not exist"),
        ({"license": ["mit"]}, "license"),
        ({"task_categories": [{"other": []}]}, "task_categories"),
        ({"configs": "trials"}, "configs must be a list"),
        ({"configs": [3]}, "needs a config_name"),
        ({"configs": [{"config_name": ["a"]}]}, "needs a config_name"),
        *(
            ({"configs": [{"config_name": "a", "data_files": value}]}, "configs.a: data file")
            for value in (
                3,
                "a",
                {"path": 3},
                [3],
                [[]],
                [{"path": []}],
                [{"path": "/etc/passwd"}],
                [{"path": "x" * 999}],
            )
        ),
    ],
)
def test_a_card_with_one_thing_wrong_is_refused_by_name(folder: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(KvatlasError, match=message.replace("(", r"\(")):
        cards.validate(cards.dump({**front(), **change}), folder, rows=1960)


def test_two_configurations_cannot_share_a_name_or_both_be_the_default(folder: Path) -> None:
    one = front()["configs"][0]
    with pytest.raises(KvatlasError, match="used twice"):
        cards.validate(cards.dump({**front(), "configs": [one, one]}), folder)
    with pytest.raises(KvatlasError, match="only one entry"):
        cards.validate(cards.dump({**front(), "configs": [one, {**one, "config_name": "b"}]}), folder)


@pytest.mark.parametrize(
    ("card", "message"),
    [
        ("# No front matter", "no front matter"),
        ("---\nlicense: mit\nlicense: apache-2.0\n---\n", "'license' is given twice"),
        ("---\nconfigs:\n- {config_name: a, config_name: b}\n---\n", "'config_name' is given twice"),
        ("---\na: !!python/tuple [1]\n---\n", "front matter: not valid YAML"),
        ("---\na: [1\n---\n", "front matter: not valid YAML"),
        ("---\njust words\n---\n", "not a mapping"),
    ],
)
def test_front_matter_is_read_strictly(card: str, message: str) -> None:
    with pytest.raises(KvatlasError, match=message):
        cards.parse(card)


def test_values_that_are_not_plain_yaml_cannot_be_written() -> None:
    with pytest.raises(yaml.representer.RepresenterError):
        cards.dump({"pretty_name": object()})


def row(**changes: Any) -> dict[str, Any]:
    base = {
        "model": "tiny",
        "mode": "aware",
        "arm": "snapkv-4x",
        "method": "snapkv",
        "budget": "4x",
        "quantizer": "none",
    }
    return {**base, "recall": 0.8444444, "ref_ppl": 1.189, "gate_passed": True, **changes}


def test_the_model_index_has_the_full_cache_and_the_best_arm_of_each_budget_under_its_hub_name() -> None:
    rows = [
        row(),
        row(arm="full", method="full", budget="none", recall=0.95),
        row(arm="full-again", method="full", budget="none", recall=1.0),
        row(arm="tova-4x", method="tova", recall=0.9),
        row(arm="h2o-8x", method="h2o", budget="8x", recall=None),
        row(mode="no_context"),
        row(model="other"),
        row(arm="x", gate_passed=False, recall=1.0),
    ]
    results = {"studies": {"needle": {"rows": rows}}}
    config = {
        "models": {"tiny": {"origin": {"upstream": "ORG/Tiny"}}},
        "config": {"publish": {"repo_id": "me/report"}},
    }
    block = cards.model_index(results, "tiny", config)
    name, evaluations = model_index_to_eval_results(yaml.safe_load(cards.dump(block, rulers=False))["model-index"])
    assert name == "ORG/Tiny"
    assert {item.dataset_type for item in evaluations} == {"me/report"}
    metrics = [(item.task_name, item.metric_type, item.metric_value) for item in evaluations]
    assert metrics == [
        ("Full cache, question-aware", "recall", 0.95),
        ("Full cache, question-aware", "perplexity", 1.189),
        ("TOVA 4x, question-aware", "recall", 0.9),
        ("TOVA 4x, question-aware", "perplexity", 1.189),
    ]
    assert cards.model_index(results, "tiny")["model-index"][0]["name"] == "tiny"


def test_a_model_without_results_has_no_model_index() -> None:
    assert cards.model_index({"studies": {}}, "tiny") == {}
