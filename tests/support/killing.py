"""Starting a checkout's workflow in the background, finding its processes, and killing some of them.

Linux only: processes are found through /proc, by the folder that they run in.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.checkout import Checkout

PATIENCE = 120.0
FORK_SERVER = "kvatlas.pipeline.fork_server"


@contextmanager
def background_run(checkout: Checkout, *targets: str, seconds_per_cell: float = 0.0) -> Iterator[subprocess.Popen[str]]:
    """Yield the workflow, started in a process group of its own; nothing of it is left afterwards.

    What it prints is in `run.log` of the checkout.
    """
    # Jobs in the background of a shell ignore interrupts, and so would all that they start.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "snakemake", *targets]
    command += ["--cores", "2", "--configfile", checkout.configfile]
    environment = checkout.environment() | {"TOY_SECONDS": str(seconds_per_cell)}
    with (checkout.root / "run.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=checkout.root,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            kill_all(checkout)
            process.wait()


def processes(checkout: Checkout) -> list[int]:
    """The ids of all live processes that run in the checkout."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _folder_of(entry) == str(checkout.root.resolve()) and words(entry):
            pids.append(int(entry.name))
    return sorted(pids)


def cells(checkout: Checkout) -> list[int]:
    """The processes that run a cell: `kvatlas job cell`, not the shell around it."""
    return commands(checkout, "cell")


def commands(checkout: Checkout, name: str) -> list[int]:
    """The processes that run a command, e.g. `kvatlas job results`, not the shell around it."""
    return [pid for pid in processes(checkout) if _is_command(words(Path(f"/proc/{pid}")), name)]


def fork_servers(checkout: Checkout) -> list[int]:
    """The processes that keep torch for the cells, forks of theirs among them."""
    return [pid for pid in processes(checkout) if FORK_SERVER in words(Path(f"/proc/{pid}"))]


def wait_for(what: Callable[[], list[int]], process: subprocess.Popen[str]) -> list[int]:
    """Wait until `what` finds processes, while the workflow runs."""
    started = time.monotonic()
    while time.monotonic() - started < PATIENCE:
        if pids := what():
            return pids
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise AssertionError("the workflow ended before there was anything to kill")


def kill(pids: list[int], number: int = signal.SIGKILL) -> None:
    """Send a signal to processes that may be gone already."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def kill_all(checkout: Checkout) -> None:
    """Kill whatever runs in the checkout, and wait until it is gone."""
    started = time.monotonic()
    while (left := processes(checkout)) and time.monotonic() - started < PATIENCE:
        kill(left)
        time.sleep(0.05)


def is_locked(checkout: Checkout) -> bool:
    """Say whether a killed Snakemake has left its lock."""
    return any((checkout.root / ".snakemake/locks").glob("*"))


def _is_command(command: list[str], name: str) -> bool:
    return name in command[2:4] and any(word.endswith("kvatlas") for word in command[:2])


def _folder_of(entry: Path) -> str | None:
    try:
        return os.readlink(entry / "cwd")
    except OSError:
        return None


def words(entry: Path) -> list[str]:
    """The command line; empty for a process that has ended and waits for its parent."""
    try:
        return (entry / "cmdline").read_text().split("\0")[:-1]
    except OSError:
        return []
