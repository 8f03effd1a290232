"""The notebook runs from its first cell to its last on the workflow with stand-in experiments, and its report publishes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml

from tests.support.checkout import Checkout, make_checkout
from tests.support.dataset_hub import TOKEN, DatasetHub
from tests.support.places import ROOT

NOTEBOOK = ROOT / "notebooks/evaluation.ipynb"


@dataclass
class Executed:
    """A notebook after its last cell: the checkout that it ran in, what it displayed, what it installed."""

    checkout: Checkout
    shown: list[Any] = field(default_factory=list)
    installed: list[list[str]] = field(default_factory=list)


def execute(checkout: Checkout, patch: pytest.MonkeyPatch) -> Executed:
    """Run the code cells in this process; a screen and pip are stand-ins."""
    executed, really_run = Executed(checkout), subprocess.run
    screen = types.ModuleType("IPython.display")
    vars(screen).update(display=executed.shown.append, Image=lambda filename, width: Path(filename))
    patch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    patch.setitem(sys.modules, "IPython.display", screen)

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if command[2] != "pip":
            return really_run(command, **options)
        executed.installed.append(command[3:])
        return subprocess.CompletedProcess(command, 0, "", "")

    patch.setattr(subprocess, "run", run)
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]):
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    return executed


@pytest.fixture(scope="module")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Executed]:
    checkout = make_checkout(tmp_path_factory.mktemp("notebook") / "kvatlas")
    (checkout.root / "notebooks").mkdir()
    checkout.configfile = "config/smoke.yaml"
    smoke = yaml.safe_load((checkout.root / checkout.configfile).read_text())
    smoke["studies"] = {"needle": smoke["studies"]["needle"]}
    smoke["studies"]["needle"] |= {"seeds_per_shard": 2, "modes": {"aware": {"methods": ["snapkv"], "budgets": ["4x"]}}}
    checkout.configure(smoke)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(checkout.root / "notebooks")
        patch.setenv("PYTHONPATH", str(checkout.root / "src"))
        yield execute(checkout, patch)


def test_the_notebook_is_valid_and_carries_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in code)


def test_the_notebook_runs_the_grid_and_shows_its_tables_and_figures(executed: Executed) -> None:
    assert executed.installed == [["install", "--quiet", "-c", "constraints.txt", "-e", "."]]
    rows, claims, trials = (item for item in executed.shown if not isinstance(item, Path))
    assert set(rows["arm"]) == set(trials["arm"]) == {"full", "snapkv-4x"}
    assert set(claims["verdict"]) <= {"supported", "contradicted", "not resolved", "not run"}
    figures = [item for item in executed.shown if isinstance(item, Path)]
    assert figures
    assert all((executed.checkout.root / figure).is_file() for figure in figures)


def test_the_publish_target_sends_a_finished_report_and_runs_nothing_else(executed: Executed) -> None:
    checkout = executed.checkout
    with DatasetHub() as hub, pytest.MonkeyPatch.context() as patch:
        for name in [key for key in os.environ if key.startswith(("HF_", "HUGGING"))]:
            patch.delenv(name)
        patch.setenv("HF_ENDPOINT", hub.url)
        patch.setenv("HF_TOKEN", TOKEN)
        patch.setenv("HF_HUB_DISABLE_XET", "1")
        without = checkout.snakemake("publish", check=False)
        assert without.returncode != 0
        assert "publish: no repository; give --repo-id NAME/REPOSITORY, or set publish.repo_id" in without.stdout
        target = ("--config", "publish={repo_id: me/smoke}")
        assert checkout.counts("publish", *target) == {"publish": 1}
        sent = checkout.snakemake("publish", *target)
        assert "in one commit" in sent.stdout
        assert "me/smoke: nothing changed, no commit was made" in checkout.snakemake("publish", *target).stdout
        repository = hub.repositories["me/smoke"]
    report = checkout.root / "reports/smoke"
    assert not repository.private
    assert len(repository.trees) == 2
    assert repository.tree["README.md"] == (report / "README.md").read_bytes()
    assert repository.tree["trials.parquet"] == (report / "trials.parquet").read_bytes()
