"""What is killed, cut short or broken is told, nothing is lost, and the same command ends with the same results."""

from __future__ import annotations

import copy
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.files import write_text
from tests.faults import surroundings
from tests.faults.random_kills import MANNERS, Campaign
from tests.support.checkout import TOY, Checkout, make_checkout, small_config
from tests.support.killing import background_run, cells, is_locked, kill, kill_all, wait_for

pytestmark = pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds processes through /proc")

RESULTS = "reports/toy/results.json"
CELLS = "results/toy/cells/needle/smollm2-135m"
CELL = f"{CELLS}/random-4x/aware-256-0.jsonl"
TARGETS = (RESULTS, CELL, "results/toy/verified/needle/smollm2-135m/aware-256-0.json")
LONG = 60.0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A finished run of three arms and a question without its context, up to its results."""
    checkout = make_checkout(tmp_path_factory.mktemp("faults") / "repo")
    checkout.configure(small_config())
    checkout.snakemake(*TARGETS)
    return checkout


@pytest.fixture
def undone(small: Checkout) -> Iterator[Checkout]:
    """The run with one arm and all that follows from it undone; the test must end with the results of before."""
    expected = (small.root / RESULTS).read_bytes()
    (small.root / CELL).unlink()
    for name in ("reports/toy", "results/toy/tables", "results/toy/verified"):
        shutil.rmtree(small.root / name)
    yield small
    kill_all(small)
    assert (small.root / RESULTS).read_bytes() == expected
    assert not is_locked(small)
    assert not list(small.root.rglob("*.part"))


def continue_run(checkout: Checkout) -> None:
    """Run the same command; it must end well."""
    checkout.snakemake(*TARGETS)


def test_a_killed_cell_is_run_again(undone: Checkout) -> None:
    with background_run(undone, *TARGETS, seconds_per_cell=LONG) as process:
        kill(wait_for(lambda: cells(undone), process))
        assert process.wait(timeout=60) != 0
    assert not (undone.root / CELL).exists()
    continue_run(undone)


def test_after_a_kill_of_snakemake_the_lock_is_explained_and_the_run_continues(undone: Checkout) -> None:
    with background_run(undone, *TARGETS, seconds_per_cell=LONG) as process:
        wait_for(lambda: cells(undone), process)
        kill([process.pid])
        process.wait(timeout=60)
        # The cell itself lives on.
        assert cells(undone)
        done = undone.snakemake(*TARGETS, check=False)
    assert done.returncode != 0
    assert "--unlock" in done.stderr
    undone.snakemake("--unlock")
    continue_run(undone)


def test_an_interrupt_leaves_no_lock(undone: Checkout) -> None:
    with background_run(undone, *TARGETS, seconds_per_cell=LONG) as process:
        wait_for(lambda: cells(undone), process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) != 0
        assert not cells(undone)
    assert not is_locked(undone)
    continue_run(undone)


def test_a_second_run_is_refused_and_the_first_one_ends(undone: Checkout) -> None:
    with background_run(undone, *TARGETS, seconds_per_cell=8.0) as process:
        wait_for(lambda: cells(undone), process)
        second = undone.snakemake(*TARGETS, check=False)
        assert second.returncode != 0
        assert "locked" in second.stderr
        assert process.wait(timeout=120) == 0


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def change_a_number(path: Path) -> None:
    path.write_text(path.read_text().replace('"hidden_cosine": 0.9', '"hidden_cosine": 0.8', 1))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [truncate, change_a_number, empty])
def test_a_damaged_cell_is_named_and_made_again(damage, undone: Checkout) -> None:
    continue_run(undone)
    damage(undone.root / CELL)
    check = undone.run("kvatlas.cli", "check", "--configfile", undone.configfile, check=False)
    assert check.returncode == 2
    assert f"{CELL} (it is corrupt, or was edited after it was written)" in check.stderr
    damaged = (undone.root / CELL).read_bytes()
    done = undone.snakemake(*TARGETS)
    aside = f"results/toy/damaged/{CELL}"
    assert f"{CELL}: corrupt, or edited after it was written; it is in {aside} now" in done.stderr
    assert (undone.root / aside).read_bytes() == damaged
    continue_run(undone)


def test_damaged_prompts_are_named_and_made_again(undone: Checkout) -> None:
    prompts = "results/toy/prompts/needle/smollm2-135m/aware-256-0.jsonl"
    truncate(undone.root / prompts)
    done = undone.snakemake(*TARGETS)
    assert f"{prompts}: corrupt, or edited" in done.stderr
    continue_run(undone)


def test_a_full_disk_is_told_and_the_run_continues(undone: Checkout, small_disk: Path) -> None:
    folder = undone.root / CELLS / "random-4x"
    shutil.rmtree(folder)
    folder.symlink_to(small_disk, target_is_directory=True)
    ballast = small_disk / "ballast"
    with pytest.raises(OSError, match="No space left"):
        ballast.write_bytes(bytes(2**22))
    done = undone.snakemake(*TARGETS, check=False)
    assert done.returncode != 0
    assert f"{CELL}: no space left on the disk; free some and run the same command again" in done.stderr
    assert not list(small_disk.glob("*.part"))
    ballast.unlink()
    continue_run(undone)
    folder.unlink()
    shutil.copytree(small_disk, folder)


def test_a_full_disk_leaves_the_old_file(small_disk: Path) -> None:
    path = small_disk / "file.txt"
    write_text(path, "old")
    with pytest.raises(KvatlasError, match="no space left on the disk"):
        write_text(path, "x" * 2**22)
    assert path.read_text() == "old"
    assert list(small_disk.iterdir()) == [path]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("a small file system cannot be mounted here (it takes root)")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_deleted_cell_is_made_again(finished: Checkout) -> None:
    (finished.root / CELL).unlink()
    pending = finished.pending()
    assert f"recall {CELL}" in pending
    assert sum(job.startswith("recall ") for job in pending) == 1
    finished.snakemake(CELL)
    assert "21 cells are" in finished.run("kvatlas.cli", "check", "--configfile", finished.configfile).stdout


def test_a_lost_picture_is_drawn_again_and_nothing_else(finished: Checkout) -> None:
    pictures = sorted((finished.root / "reports/toy/figures").glob("*.png"))
    lost = pictures[0]
    before = lost.read_bytes()
    lost.unlink()
    assert finished.pending() == ["all", f"figure results/toy/figures/{lost.stem}.json"]
    finished.snakemake()
    assert lost.read_bytes() == before
    assert finished.pending() == []


def test_an_accepted_edit_keeps_every_number_and_says_what_made_it(edited: Checkout) -> None:
    results = (edited.root / "reports/toy/results.json").read_bytes()
    path = "src/kvatlas/compression/policies/h2o.py"
    original = (edited.root / path).read_bytes()
    for data in (original + b"\nADDED = 1\n", original):
        (edited.root / path).write_bytes(data)
        assert edited.pending() != []
        done = edited.run("kvatlas.cli", "check", "--accept", "--configfile", edited.configfile)
        assert "5 cells accepted" in done.stdout
        edited.snakemake("--touch")
        assert edited.pending() == []
    edited.run("kvatlas.cli", "check", "--configfile", edited.configfile)
    assert (edited.root / "reports/toy/results.json").read_bytes() == results
    assert '"accepted_from"' in (edited.root / f"{CELLS}/h2o-4x/aware-256-0.jsonl").read_text()


def test_another_configuration_is_not_accepted_as_an_edit_of_the_code(edited: Checkout) -> None:
    config = copy.deepcopy(TOY)
    config["studies"]["needle"]["n_recent"] = 16
    edited.configure(config)
    done = edited.run("kvatlas.cli", "check", "--accept", "--configfile", edited.configfile, check=False)
    assert "0 cells accepted" in done.stdout
    assert done.returncode == 2


def test_two_runs_at_once_on_an_odd_path_do_not_meet(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / surroundings.ODD_NAME / "repo")
    checkout.configure(small_config() | {"title": "{config} {input[0]!r} {{ 7 * 7 }} $(exit 1) `exit 1` '\"; exit 1 #"})
    assert surroundings.two_runs(checkout, [CELL]) == []
    assert "results reports/toy/results.json" in checkout.pending()


def test_kills_at_random_moments_change_nothing(small: Checkout) -> None:
    campaign = Campaign(small, seed=3, targets=TARGETS, manners=MANNERS[:4], seconds_per_cell=0.5)
    campaign.run(3)
    assert sum(campaign.kills.values()) == 3
    assert campaign.identical == campaign.finished >= 1
