"""What the Snakefile asks: refused where its paths would mean other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.grid import config
from kvatlas.pipeline.workflow import Workflow
from tests.support.places import ROOT


def test_a_workflow_started_in_another_folder_is_refused_with_the_folder_to_go_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = config.load(ROOT / "config/smoke.yaml", root=ROOT)
    monkeypatch.chdir(ROOT)
    Workflow.require_folder(ROOT)
    assert Workflow.open(loaded, [], ROOT).paths.run == "smoke"
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=f"run snakemake in {ROOT}"):
        Workflow.require_folder(ROOT)
    (tmp_path / "a {x}").mkdir()
    monkeypatch.chdir(tmp_path / "a {x}")
    with pytest.raises(SystemExit, match="Snakemake takes braces in a path for wildcards; rename the folder"):
        Workflow.require_folder(tmp_path / "a {x}")
