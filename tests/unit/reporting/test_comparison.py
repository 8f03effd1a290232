"""`kvatlas compare`: exit codes, the page it writes, and reports of the Hub."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvatlas.analysis.agreement.report import ANSWERS, DATA
from kvatlas.cli import main
from kvatlas.reporting import comparison
from tests.support.dataset_hub import TOKEN, DatasetHub, Repository
from tests.support.places import ROOT

FOLDER = ROOT / "reports/embedded"


@pytest.fixture
def repeat(tmp_path: Path) -> Path:
    folder = tmp_path / "repeat"
    folder.mkdir()
    for name in DATA:
        shutil.copy(FOLDER / name, folder / name)
    return folder


def change(folder: Path, **columns: object) -> None:
    """Overwrite columns of the answers of SnapKV at 4x."""
    rows = pq.read_table(folder / ANSWERS).to_pylist()
    for row in rows:
        if row["arm"] == "snapkv-4x":
            row.update(columns)
    pq.write_table(pa.Table.from_pylist(rows, schema=pq.read_schema(folder / ANSWERS)), folder / ANSWERS)


def compare(tmp_path: Path, other: Path) -> int:
    return main.main(["compare", str(FOLDER), str(other), "--output", str(tmp_path)])


def test_reports_that_agree_exit_with_0_and_leave_a_page(tmp_path, repeat, capsys):
    assert compare(tmp_path, repeat) == 0
    assert "verdict: the reports agree" in capsys.readouterr().out
    page = (tmp_path / comparison.PAGE).read_text()
    assert "## Arms that differ by more than chance\n\nNone." in page
    assert json.loads((tmp_path / comparison.DATA).read_text())["verdict"] == "agree"


def test_a_broken_arm_exits_with_1_and_is_named(tmp_path, repeat, capsys):
    change(repeat, hit=False, output_ids=[0])
    assert compare(tmp_path, repeat) == 1
    assert "1 differ by more than chance: needle, smollm2-135m, snapkv-4x, aware" in capsys.readouterr().out
    page = (tmp_path / comparison.PAGE).read_text()
    section = page.partition("## Arms that differ by more than chance")[2].partition("## All other arms")[0]
    assert section.count("snapkv-4x") == 1


def test_what_cannot_be_compared_exits_with_2_and_writes_nothing(tmp_path, repeat, capsys):
    change(repeat, answer="another")
    assert compare(tmp_path, repeat) == 2
    assert capsys.readouterr().err.startswith("kvatlas: error: needle smollm2-135m snapkv-4x")
    assert not (tmp_path / comparison.PAGE).exists()
    assert main.main(["compare", str(FOLDER), "no folder", "--output", str(tmp_path)]) == 2
    assert "no such folder, and not a Hub id" in capsys.readouterr().err


def test_text_of_a_foreign_report_is_inert_on_the_page(tmp_path, repeat):
    config = json.loads((repeat / "config.json").read_text())
    config["packages"]["<script>alert(1)</script>"] = "[x](http://a.b)"
    (repeat / "config.json").write_text(json.dumps(config))
    assert compare(tmp_path, repeat) == 0
    page = (tmp_path / comparison.PAGE).read_text()
    assert "alert" in page
    assert "<script" not in page
    assert "[x]" not in page


def test_a_report_of_the_hub_is_compared_by_its_id(tmp_path, repeat):
    with DatasetHub() as hub:
        files = {name: (repeat / name).read_bytes() for name in DATA} | {"README.md": b"not needed"}
        hub.repositories["me/report"] = Repository(trees=[files])
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        environment = kept | {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path / "home")}
        command = [sys.executable, "-m", "kvatlas.cli", "compare", str(FOLDER), "--output", str(tmp_path)]

        def run(repo: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [*command, repo], check=False, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=120
            )

        done = run("me/report")
        assert done.returncode == 0, done.stderr
        assert "the reports agree" in done.stdout
        assert not any("README.md" in request and "resolve" in request for request in hub.requests)
        absent = run("me/nothing")
    assert absent.returncode == 2
    assert "Traceback" not in absent.stderr
    assert "me/nothing" in absent.stderr
