"""The notebook runs from its first cell to its last, on the workflow with stand-in experiments."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from tests.support.checkout import make_checkout

NOTEBOOK = Path(__file__).parents[2] / "notebooks/evaluation.ipynb"


def test_the_notebook_is_valid_and_carries_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert all(not cell.get("outputs") and not cell.get("execution_count") for cell in notebook.cells)


def test_the_notebook_runs_the_grid_and_shows_its_tables_and_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = make_checkout(tmp_path / "kvatlas")
    (checkout.root / "notebooks").mkdir()
    smoke = yaml.safe_load((checkout.root / "config/smoke.yaml").read_text())
    smoke["studies"]["needle"] |= {"seeds_per_shard": 2, "modes": {"aware": {"methods": ["snapkv"], "budgets": ["4x"]}}}
    (checkout.root / "config/smoke.yaml").write_text(yaml.safe_dump(smoke))
    monkeypatch.chdir(checkout.root / "notebooks")
    monkeypatch.setenv("PYTHONPATH", str(checkout.root / "src"))

    shown: list[Any] = []
    screen = types.ModuleType("IPython.display")
    vars(screen).update(display=shown.append, Image=lambda filename, width: Path(filename))
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", screen)

    installed: list[list[str]] = []
    really_run = subprocess.run

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[2] != "pip":
            return really_run(command, **options)
        installed.append(command[3:])
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)

    assert installed == [["install", "--quiet", "-c", "constraints.txt", "-e", "."]]
    tables = [item for item in shown if not isinstance(item, Path)]
    assert set(tables[0]["arm"]) == {"full", "snapkv-4x"}
    assert set(tables[1]["verdict"]) <= {"supported", "contradicted", "not resolved", "not run"}
    assert set(tables[2]["arm"]) == set(tables[0]["arm"])
    figures = [item for item in shown if isinstance(item, Path)]
    assert figures
    assert all(figure.is_file() for figure in figures)
