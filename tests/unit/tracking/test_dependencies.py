"""What an edit of the package makes new: the cells, tables and pages whose numbers or texts it can change, and no other."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvatlas.grid import config, unfold
from kvatlas.grid.cells import Cell
from tests.support.places import ROOT

CONFIG = "config/smoke.yaml"
CELLS = unfold.grid(config.load(ROOT / CONFIG, ROOT)).cells
PAGES = {"pages", "highlights", "explorer"}


def fingerprints(root: Path) -> dict[str, str]:
    """The fingerprints that the package in `root` gives."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(ROOT)])}
    command = [sys.executable, "-B", "-m", "tests.support.fingerprints", CONFIG]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the package, and its fingerprints before any edit."""
    root = tmp_path_factory.mktemp("package")
    for folder in ("src/kvatlas", "config"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return root, fingerprints(root)


def changed(copied: tuple[Path, dict[str, str]], file: str, old: str, new: str) -> set[str]:
    """What has another fingerprint after an edit; the file is put back."""
    root, before = copied
    path = root / "src/kvatlas" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    try:
        after = fingerprints(root)
    finally:
        path.write_text(text, encoding="utf-8")
    assert set(after) == set(before)
    return {name for name in before if after[name] != before[name]}


def cells_of(names: set[str]) -> list[Cell]:
    return [CELLS[name] for name in names if name in CELLS]


def test_a_label_is_in_pages_and_figures_and_in_no_cell_or_table(copied: tuple[Path, dict[str, str]]) -> None:
    names = changed(copied, "compression/policies/snapkv.py", 'label="SnapKV"', 'label="Snap"')
    assert names >= PAGES
    assert {name for name in names if not name.startswith("figure ")} == PAGES


def test_a_quantizer_s_file_is_in_the_cells_that_name_it_and_nowhere_else(copied: tuple[Path, dict[str, str]]) -> None:
    names = changed(copied, "compression/quantizers/kivi.py", "\nGROUP = 32", "\nGROUP = 64")
    asked = {name for name, cell in CELLS.items() if str(cell.spec.get("quantizer", "")).startswith("kivi")}
    assert asked
    assert names == asked


def test_a_policy_s_file_is_in_the_cells_that_name_it_and_nowhere_else(copied: tuple[Path, dict[str, str]]) -> None:
    names = changed(
        copied, "compression/policies/snapkv.py", "self.selection_scores(layer)", "-self.selection_scores(layer)"
    )
    asked = {name for name, cell in CELLS.items() if cell.spec.get("policy", {}).get("name") == "snapkv"}
    assert asked
    assert names == asked


def test_a_task_s_file_is_in_its_prompts_alone(copied: tuple[Path, dict[str, str]]) -> None:
    names = changed(copied, "tasks/passkey.py", "10000", "20000")
    assert {(cell.kind, cell.spec["task"]) for cell in cells_of(names)} == {("prompts", "passkey")}
    assert len(cells_of(names)) == len(names)


def test_an_experiment_s_file_is_in_its_own_cells_alone(copied: tuple[Path, dict[str, str]]) -> None:
    names = changed(copied, "experiments/online_lm.py", "\n\ndef ", "\n\nEDITED = 1\n\n\ndef ")
    assert {cell.kind for cell in cells_of(names)} == {"online_lm"}
    assert len(cells_of(names)) == len(names)


def test_a_section_is_in_the_pages_alone(copied: tuple[Path, dict[str, str]]) -> None:
    names = changed(copied, "reporting/sections/passkey.py", "Passkey slots kept", "Slots of the passkey")
    assert names == {"pages"}


def test_a_comment_changes_nothing(copied: tuple[Path, dict[str, str]]) -> None:
    assert changed(copied, "lm/cache.py", "\n\n\nclass ", "\n\n\n# A comment.\nclass ") == set()
