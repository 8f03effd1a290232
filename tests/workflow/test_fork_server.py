"""Cells that are forks of one process: the same results, the same errors, and nothing left when something is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
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


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[Callable[[bytes | None], str]]:
    """Starts a socket that answers each connection with some bytes and closes it, or (None) keeps silent."""
    with ExitStack() as stack:

        def listen(answer: bytes | None) -> str:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(str(tmp_path / "foreign"))
            listener.listen()

            def serve() -> None:
                with suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        stack.callback(connection.close)
                        if answer is not None:
                            connection.sendall(answer)
                            connection.shutdown(socket.SHUT_WR)

            threading.Thread(target=serve, daemon=True).start()
            return f"{sys.prefix}:{tmp_path / 'foreign'}"

        yield listen


@pytest.mark.parametrize("answer", [b"", b"0\n", b"0\n" * 50, b"HTTP/1.1 200 OK\r\n\r\n", b"\xff" * 100])
def test_whatever_else_listens_there_is_no_server(foreign, monkeypatch, answer):
    monkeypatch.setenv(fork_server.VARIABLE, foreign(answer))
    assert fork_server.run(["job", "cell"], MAIN) is None


def test_a_silent_socket_is_given_up(foreign, monkeypatch):
    monkeypatch.setenv(fork_server.VARIABLE, foreign(None))
    monkeypatch.setattr(fork_server, "GREETING_SECONDS", 0.2)
    assert fork_server.run(["job", "cell"], MAIN) is None


@pytest.mark.parametrize("answer", [b"", b"1", b"\xff", b"done\n"])
def test_a_fork_that_ends_without_an_answer_was_killed(foreign, monkeypatch, capsys, answer):
    monkeypatch.setenv(fork_server.VARIABLE, foreign(fork_server.GREETING + answer))
    assert fork_server.run(["job", "cell"], MAIN) == fork_server.KILLED
    assert "the cell was killed" in capsys.readouterr().err


def test_cells_in_the_queue_of_a_server_that_dies_run_by_themselves(server: str, tmp_path: Path) -> None:
    """Stopped, the server accepts nothing; then it is killed with the cell waiting."""
    process = fork_server._STARTED[-1]
    os.kill(process.pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(_cell, tmp_path, server) for _ in range(2)]
            _until(lambda: len(_connected(server)) >= 2)
            process.kill()
            done = [cell.result(timeout=killing.PATIENCE) for cell in waiting]
    finally:
        process.kill()
        process.wait()
        process.returncode = 0  # as the fixture expects of one that was not killed
    assert [cell.returncode for cell in done] == [2, 2]
    assert all("nonsense" in cell.stderr and "Traceback" not in cell.stderr for cell in done)


def test_folders_of_killed_servers_are_removed_by_the_next_and_others_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(fork_server.VARIABLE, raising=False)
    for name in ("kvatlas-dead", "kvatlas-used", "other-dead"):
        (tmp_path / name).mkdir()
    listeners = []
    for name in ("kvatlas-dead", "kvatlas-used", "other-dead"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / name / "socket"))
        if name == "kvatlas-used":
            listener.listen()
            listeners.append(listener)
        else:
            listener.close()
    process = fork_server.start()
    assert process is not None
    try:
        left = {path.name for path in tmp_path.iterdir()}
        assert {"kvatlas-used", "other-dead"} < left
        assert "kvatlas-dead" not in left
        assert len(left) == 3
    finally:
        os.environ.pop(fork_server.VARIABLE)
        process.communicate(timeout=60)
        listeners[0].close()
    assert {path.name for path in tmp_path.iterdir()} == {"kvatlas-used", "other-dead"}


def test_a_cell_with_packages_of_its_own_is_not_a_fork(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fork_server.VARIABLE, server)
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    assert fork_server.run(["job", "cell"], MAIN) is None


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
        "job",
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


def _connected(server: str) -> list[str]:
    """The connections to a server's socket that it has not accepted yet."""
    path = server.rpartition(":")[2]
    return [line for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(path)][1:]


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
