"""What an addition touches, as CONTRIBUTING.md says: files are added, none is edited, and everything else finds them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import additions
from tests.support.places import ROOT

# Row of the table in CONTRIBUTING.md -> its folder of additions, and how many files it takes.
ROWS = {
    "a policy": ("policy", 1),
    "a quantizer": ("quantizer", 1),
    "a model, a text": ("model", 1),
    "a claim": ("claim", 1),
    "a figure": ("figure", 1),
    "a fact task": ("task", 1),
    "a long-context task": ("long_task", 1),
    "a study": ("study", 3),
}
ENTRIES = ("model", "claim")
PACKAGE = "src/kvatlas"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the package with the additions says of them."""
    root = tmp_path_factory.mktemp("additions")
    additions.make_copy(root)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(ROOT)]), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-B", "-m", "tests.support.additions"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert Path(found["package"]).is_relative_to(root)
    return found


def table() -> dict[str, str]:
    """The table of additions: what is added -> what it touches."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("## What an addition touches")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in rows[2:]}


def paths_of(cell: str) -> list[str]:
    """Regular expressions of the files that a row of the table says are always touched."""
    words = re.findall(r"`([\w/.]+\.(?:py|yaml|j2))`", cell.partition(";")[0])
    paths = [word if word.startswith("config/") else f"{PACKAGE}/{word}" for word in words]
    return [re.escape(path).replace("fN_", r"f\d+_").replace("NAME", "[a-z0-9_]+") for path in paths]


def test_the_table_lists_every_addition() -> None:
    assert list(table()) == list(ROWS)
    assert {what for what, _ in ROWS.values()} == {path.name for path in additions.ADDITIONS.iterdir() if path.is_dir()}


@pytest.mark.parametrize("row", ROWS)
def test_an_addition_is_the_files_that_its_row_names(row: str) -> None:
    what, count = ROWS[row]
    files, paths = additions.added_files(what), paths_of(table()[row])
    assert len(files) == count
    assert all(any(re.fullmatch(path, file) for path in paths) for file in files)
    if what not in ENTRIES:
        assert len(paths) == count


@pytest.mark.parametrize("what", [what for what, _ in ROWS.values()])
def test_only_models_and_claims_go_into_files_that_are_there(what: str) -> None:
    there = [name for name in additions.added_files(what) if (ROOT / name).exists()]
    assert there == (additions.added_files(what) if what in ENTRIES else [])


def test_the_policy_is_the_one_of_the_readme() -> None:
    (name,) = additions.added_files("policy")
    assert f"```python\n{(additions.ADDITIONS / 'policy' / name).read_text()}```" in (ROOT / "README.md").read_text()


def test_a_policy_is_known_with_its_parameters_and_keeps_what_it_scores_highest(answers: dict[str, Any]) -> None:
    policy = answers["policy"]
    assert policy["registered"]
    assert policy["parameters"] == {"p": 2.0}
    assert policy["built"] == "ValueNorm(p=1.0)"
    assert len(policy["kept"]) == 10 + (additions.TOKENS - 10) // 4
    assert policy["kept"][2:-8] == policy["longest"]
    assert {"name": "value_norm"} in policy["generic tests"]
    assert additions.added_files("policy")[0] in policy["code"]


def test_pages_have_a_label_a_look_and_a_row_for_a_policy(answers: dict[str, Any]) -> None:
    policy = answers["policy"]
    assert policy["label"] == "Value norm (l1)"
    assert re.fullmatch("#[0-9A-F]{6}", policy["color"])
    row = "| `value_norm` | Value norm | The score is a norm of the value, in fp32. | `p: 2.0` | example |"
    assert row in policy["page"]


def test_a_quantizer_is_known_and_stores_what_it_says(answers: dict[str, Any]) -> None:
    assert answers["quantizer"] == {
        "registered": True,
        "module": "kvatlas.compression.quantizers.half",
        "as fp16": True,
        "bits": 16,
    }


def test_a_figure_is_listed_and_drawn_from_a_report(answers: dict[str, Any]) -> None:
    figure = answers["figure"]
    assert figure["listed"][-1] == "f99_models"
    assert any("f99_models" in stamp for stamp in figure["stamps"])
    assert sorted(figure["drawn"]) == ["f99_models.png", "f99_models.svg"]
    assert additions.added_files("figure")[0] in figure["page code"]


def test_a_fact_task_is_named_by_a_configuration_and_makes_prompts(answers: dict[str, Any]) -> None:
    task = answers["task"]
    assert task["task"] == "badge"
    assert task["lengths"] == [512, 512]
    assert additions.added_files("task")[0] in task["code"]


def test_a_long_context_task_is_named_by_a_configuration_and_makes_prompts(answers: dict[str, Any]) -> None:
    task = answers["long task"]
    assert task["prompts"] == {"niah_two_values": [512, 512]}
    assert task["new_tokens"] == [128]
    assert additions.added_files("long_task")[0] in task["code"]
    assert task["shown"] == "Two values, noise"


def test_a_study_unfolds_into_cells_of_rules_that_know_it(answers: dict[str, Any]) -> None:
    study = answers["study"]
    twins = {f"{method}-4x{quantizer}" for method in ("value_norm", "value_norm_l1") for quantizer in ("", "-half")}
    assert set(study["arms"]) == {"full", "full-half"} | twins
    assert "visitors" in study["schema"]
    assert study["rules"] == ["prompts", "prefill", "recall"]
    assert any("visitor" in table for table in study["tables"])
    assert {f"{PACKAGE}/grid/studies/visitor.py", f"{PACKAGE}/analysis/studies/needle.py"} <= set(study["table code"])


def test_a_study_has_a_section_with_its_table(answers: dict[str, Any]) -> None:
    study = answers["study"]
    assert study["sections"] == ["visitor"]
    assert study["section"].startswith("| Method |")
    assert study["section"].count("\n|") > 2
    assert set(additions.added_files("study")) <= set(answers["figure"]["page code"]) | set(study["table code"])


def test_a_model_and_a_claim_are_entries(answers: dict[str, Any]) -> None:
    entries = answers["entries"]
    assert entries["title"] == "Mine"
    assert entries["memory"] > 0
    assert set(entries["verdicts"]) <= {"supported", "contradicted", "not resolved"}
    assert entries["verdicts"]
