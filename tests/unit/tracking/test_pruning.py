"""Files that a configuration no longer has are listed, and deleted only when that is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvatlas.cli import main
from kvatlas.grid import config, unfold
from kvatlas.grid.cells import Grid
from kvatlas.paths import checksum_record, code_record, tensors_of, timing_of
from kvatlas.tracking import pruning
from tests.support.places import ROOT


@pytest.fixture
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    loaded = config.load(ROOT / "config/smoke.yaml", root=ROOT)
    monkeypatch.chdir(tmp_path)
    return loaded


def fill(grid: Grid) -> None:
    """Write something for every file of a run."""
    for path in (*grid.cells, *grid.verified(), *map(grid.paths.table, grid.config["studies"])):
        for file in (Path(path), timing_of(path), tensors_of(path), code_record(path), checksum_record(path)):
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("x")


def test_a_run_as_configured_has_nothing_left_over(configuration: dict[str, Any]) -> None:
    grid = unfold.grid(configuration)
    fill(grid)
    assert pruning.left_over(grid) == []


def test_cells_of_a_removed_arm_and_a_removed_study_are_left_over(configuration: dict[str, Any]) -> None:
    before = unfold.grid(configuration)
    fill(before)
    page = Path(before.paths.report, "quantizer-error.md")
    page.parent.mkdir(parents=True)
    page.write_text("x")
    configuration["studies"]["needle"]["modes"]["aware"]["methods"].remove("snapkv")
    del configuration["studies"]["quantizer_error"]
    grid = unfold.grid(configuration)
    gone = {Path(path) for path in before.cells} - {Path(path) for path in grid.cells}
    left = pruning.left_over(grid)
    assert gone <= set(left)
    assert page in left
    assert Path(before.paths.table("quantizer_error")) in left
    for path in left:
        pruning.remove(path)
    assert pruning.left_over(grid) == []
    assert not any(timing_of(path).exists() or code_record(path).exists() for path in gone)
    assert all(Path(path).is_file() for path in grid.cells)
    assert not Path(before.paths.cell("needle", "smollm2-135m", "snapkv-4x", "x")).parent.exists()


def test_the_command_lists_and_deletes_only_with_yes(
    configuration: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(unfold.grid(configuration))
    configuration["studies"]["needle"]["modes"]["aware"]["methods"].remove("snapkv")
    monkeypatch.setattr(config, "load", lambda path: configuration)
    assert main.main(["prune"]) == 0
    listed = capsys.readouterr().out
    assert "snapkv-4x" in listed
    assert "--yes deletes them" in listed
    assert main.main(["prune", "--yes"]) == 0
    assert "deleted: " in capsys.readouterr().out
    assert main.main(["prune"]) == 0
    assert capsys.readouterr().out == "0 files are of no cell of this configuration\n"
