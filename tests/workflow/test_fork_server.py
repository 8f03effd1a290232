"""Cells that are forks of one process: the same results, the same errors, and nothing left when something is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path

import pytest

from kvatlas.cli.main import MAIN
from kvatlas.pipeline import fork_server
from tests.support import killing
from tests.support.checkout import Checkout, forget, make_checkout
from tests.support.tiny_run import TINY, make_tiny_run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no fork server on this system")
COMPARED = ("results.json", "trials.parquet", "samples.md", "explorer.html")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of this process, and the text by which clients find it."""
    monkeypatch.delenv(fork_server.VARIABLE, raising=False)
    process = fork_server.start()
    assert process is not None
    yield os.environ.pop(fork_server.VARIABLE)
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_runs_with_and_without_forks_have_the_same_results(tmp_path: Path) -> None:
    config = deepcopy(TINY)
    config["studies"]["needle"] |= {"seeds": 1, "modes": {"aware": {"methods": ["snapkv"], "budgets": ["4x"]}}}
    checkout = make_tiny_run(tmp_path / "repo", config)
    reports = []
    for checkout.forks in (False, True):
        forget(checkout)
        checkout.snakemake()
        reports.append({name: (checkout.root / "reports/tiny" / name).read_bytes() for name in COMPARED})
    assert reports[0] == reports[1]


def test_an_error_looks_the_same(server: str, tmp_path: Path) -> None:
    cold = _cell(tmp_path, "off")
    assert cold.returncode == 2
    assert "nonsense" in cold.stderr
    told = _cell(tmp_path, server)
    assert (told.returncode, told.stdout, told.stderr) == (cold.returncode, cold.stdout, cold.stderr)


def test_a_cell_imports_for_itself_without_its_server(tmp_path: Path) -> None:
    alone = _cell(tmp_path, f"{sys.prefix}:{tmp_path / 'gone'}")
    assert alone.returncode == 2
    assert "nonsense" in alone.stderr
    assert alone.stderr == _cell(tmp_path, "off").stderr


def test_a_cell_with_packages_of_its_own_is_not_a_fork(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fork_server.VARIABLE, server)
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    assert fork_server.run(["cell"], MAIN) is None


def test_only_cells_are_forks(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fork_server.VARIABLE, server)
    assert fork_server.run(["plan"], MAIN) is None


def test_a_killed_cell_and_a_killed_workflow_leave_nothing_running(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "repo")
    checkout.forks = True
    with killing.background_run(checkout, seconds_per_cell=600.0) as process:
        killing.wait_for(lambda: _sleeping(checkout), process)
        killing.kill(killing.cells(checkout))
        _until(lambda: not _sleeping(checkout) or bool(killing.cells(checkout)))
        killing.kill([process.pid])
        process.wait()
        killing.kill(killing.cells(checkout))
        _until(lambda: not killing.processes(checkout))


def test_a_cell_that_the_system_kills_says_so(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "repo")
    checkout.forks = True
    with killing.background_run(checkout, seconds_per_cell=600.0) as process:
        forks = killing.wait_for(lambda: _sleeping(checkout), process)
        log = Path(os.readlink(f"/proc/{forks[0]}/fd/1"))
        killing.kill(forks[:1])
        _until(lambda: "the cell was killed" in log.read_text())


def test_an_interrupt_reaches_the_cells(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "repo")
    checkout.forks = True
    with killing.background_run(checkout, seconds_per_cell=600.0) as process:
        killing.wait_for(lambda: _sleeping(checkout), process)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=killing.PATIENCE)
        _until(lambda: not killing.processes(checkout))


def _cell(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from kvatlas.cli.main import entry; entry()"]
    command += [
        "cell",
        "--spec",
        '{"kind": "nonsense"}',
        "--threads",
        "1",
        "--input",
        "model=none",
        "--output",
        str(folder / "cell.jsonl"),
    ]
    environment = os.environ | {fork_server.VARIABLE: text}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


def _sleeping(checkout: Checkout) -> list[int]:
    """The forks that run a cell: they have left the log of the workflow for their own."""
    return [pid for pid in killing.processes(checkout) if _is_fork(Path(f"/proc/{pid}"))]


def _is_fork(entry: Path) -> bool:
    try:
        return "kvatlas.pipeline.fork_server" in killing.words(entry) and "recall" in os.readlink(entry / "fd/1")
    except OSError:
        return False


def _until(happened: Callable[[], bool]) -> None:
    started = time.monotonic()
    while not happened():
        assert time.monotonic() - started < killing.PATIENCE
        time.sleep(0.1)
