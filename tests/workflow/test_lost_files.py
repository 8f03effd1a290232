"""Whatever of a finished run is lost or spoiled is made again by the same command, with the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import surroundings
from tests.support import run_files
from tests.support.checkout import Checkout, make_checkout
from tests.support.places import ROOT

UNTRACKED_BY_WHY = ("timing",)  # a sidecar of its cell
WHY = """
import json, sys
from pathlib import Path
from kvatlas.grid import config
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import staleness
current = Workflow(config.load(sys.argv[1])).current
found = {}
for kind, name in json.loads(sys.argv[2]).items():
    before = staleness.explain_rerun(current, name)
    aside = Path(name).rename(name + ".aside")
    found[kind] = [before, staleness.explain_rerun(current, name)]
    aside.rename(name)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A finished run that no other test has edited: what is accepted as another code's leaves a mark in its cells."""
    checkout = make_checkout(tmp_path_factory.mktemp("lost") / "repo")
    checkout.snakemake()
    return checkout


@pytest.mark.parametrize("loss", run_files.LOSSES)
def test_one_file_of_every_kind_is_made_again(finished: Checkout, loss: run_files.Loss) -> None:
    before = run_files.contents(finished)
    for name in run_files.by_kind(finished).values():
        loss(finished.root / name)
    finished.snakemake()
    assert run_files.contents(finished) == before
    assert finished.pending() == []


def test_a_results_job_that_was_killed_is_run_again(finished: Checkout) -> None:
    """Snakemake removes the outputs of a job that failed, and `README.md` stands as it was."""
    before = run_files.contents(finished)
    for name in ("results.json", "config.json", "timings.json", "trials.parquet"):
        (finished.root / "reports/toy" / name).unlink()
    assert "results reports/toy/results.json" in finished.pending()
    finished.snakemake()
    assert run_files.contents(finished) == before


def test_a_report_that_came_with_a_clone_is_left_where_it_is(tmp_path: Path) -> None:
    """Nothing is known of its files; a run makes them again, a dry run touches nothing."""
    checkout = make_checkout(tmp_path / "repo")
    report = checkout.root / "reports/toy"
    shutil.copytree(ROOT / "reports/embedded", report)
    before = {path: path.read_bytes() for path in report.rglob("*") if path.is_file()}
    checkout.pending()
    assert {path: path.read_bytes() for path in report.rglob("*") if path.is_file()} == before


def test_a_changed_byte_is_seen_though_its_time_was_kept(finished: Checkout) -> None:
    before = run_files.contents(finished)
    path = finished.root / run_files.by_kind(finished)["cell"]
    status, raw = path.stat(), bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "corrupt, or edited after it was written" in finished.snakemake().stderr
    assert run_files.contents(finished) == before


def test_a_clock_that_jumps_back_changes_nothing(finished: Checkout) -> None:
    assert surroundings.clock_back(finished, all_of_it=False) == []


def test_why_names_the_loss_of_every_kind_and_of_nothing_else(finished: Checkout) -> None:
    kinds = {kind: name for kind, name in run_files.by_kind(finished).items() if kind not in UNTRACKED_BY_WHY}
    done = subprocess.run(
        [sys.executable, "-c", WHY, finished.configfile, json.dumps(kinds)],
        cwd=finished.root,
        env=finished.environment(),
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {kind for kind, (before, _) in found.items() if before} == set()
    assert {kind for kind, (_, after) in found.items() if not after} == set()
