"""Adding a policy is adding its file: everything else finds it there."""

from __future__ import annotations

import filecmp
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT

POLICY = "src/kvatlas/compression/policies/value_norm.py"
CONFIG = """\
run: toy
title: Toy
models: [smollm2-135m]
embedder: all-minilm-l6-v2
methods:
  value_norm_l1: {policy: value_norm, p: 1.0}
studies:
  needle:
    contexts: [512]
    seeds: 2
    depths: [10, 90]
    new_tokens: 24
    n_sinks: 4
    n_recent: 32
    modes:
      aware: {methods: [random, value_norm, value_norm_l1], budgets: ["4x"]}
"""
# What the rest of the project knows of the policy, asked where nothing but its file was added.
QUESTIONS = """
import json
from pathlib import Path

import kvatlas
from kvatlas.compression.build import make_policy
from kvatlas.grid import config, policy_parameters, unfold
from kvatlas.reporting import labels, methods_page, style
from kvatlas.tracking import dependencies
from tests.support.policies import SPECS

grid = unfold.grid(config.load(Path("toy.yaml")))
code = dependencies.cell_code({"kind": "recall", "policy": {"name": "value_norm"}})
print(json.dumps({
    "package": kvatlas.__file__,
    "known": "value_norm" in policy_parameters.known_policies(),
    "parameters": {field.name: field.default for field in policy_parameters.policy_fields("value_norm").values()},
    "policy": repr(make_policy({"name": "value_norm", "p": 1.0})),
    "label": labels.method_label("value_norm_l1"),
    "look": style.method_style("value_norm").color,
    "page": methods_page.methods_page(Path("docs/methods.md").read_text()),
    "arms": sorted({cell.spec["arm"] for cell in grid.trial_cells()}),
    "code": sorted(code),
    "matrix": [spec for spec in SPECS if spec["name"] == "value_norm"],
}))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with the README's policy in it."""
    root = tmp_path_factory.mktemp("checkout")
    for folder in ("src/kvatlas", "config", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"## Add a policy.*?^```python\n(.*?)^```", readme, flags=re.M | re.S)
    assert code is not None
    (root / POLICY).write_text(code[1])
    (root / "toy.yaml").write_text(CONFIG)
    return root


@pytest.fixture(scope="module")
def answers(checkout: Path) -> dict[str, Any]:
    path = os.pathsep.join([str(checkout / "src"), str(ROOT)])
    run = subprocess.run(
        [sys.executable, "-B", "-c", QUESTIONS],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    assert found["package"].startswith(str(checkout))
    return found


def test_nothing_but_its_file_was_added(checkout: Path, answers: dict[str, Any]) -> None:
    theirs = {path.relative_to(checkout).as_posix() for path in checkout.rglob("*") if path.is_file()}
    assert {name for name in theirs if not (ROOT / name).exists()} == {POLICY, "toy.yaml"}
    _, different, errors = filecmp.cmpfiles(checkout, ROOT, theirs - {POLICY, "toy.yaml"}, shallow=False)
    assert not different
    assert not errors


def test_it_is_known_with_its_parameters_and_can_be_built(answers: dict[str, Any]) -> None:
    assert answers["known"]
    assert answers["parameters"] == {"p": 2.0}
    assert answers["policy"] == "ValueNorm(p=1.0)"


def test_pages_have_a_label_a_look_and_a_row_for_it(answers: dict[str, Any]) -> None:
    assert answers["label"] == "Value norm (l1)"
    assert re.fullmatch("#[0-9A-F]{6}", answers["look"])
    assert (
        "| `value_norm` | Value norm | The score is a norm of the value, in fp32. | `p: 2.0` | example |"
        in (answers["page"])
    )


def test_a_line_of_a_configuration_makes_its_arms(answers: dict[str, Any]) -> None:
    assert {"value_norm-4x", "value_norm_l1-4x"} <= set(answers["arms"])


def test_its_cells_depend_on_its_file(answers: dict[str, Any]) -> None:
    assert POLICY in answers["code"]


def test_the_generic_tests_cover_it(answers: dict[str, Any]) -> None:
    assert {"name": "value_norm"} in answers["matrix"]
