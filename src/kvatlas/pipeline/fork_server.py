"""A fork server: one process imports torch and transformers once, and each cell of a local run is a fork of it.

Importing them takes longer than many a cell's work on a small model. The server imports no cell's code, so that
a fork reads what the files say then, like any new process; it does not touch a GPU, because CUDA does not survive a fork.
It ends with the process that started it. Where there is no server, a cell imports for itself; the results are the same.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kvatlas import terminal

# The server's environment of packages and its socket, PREFIX:PATH; any other text switches the server off.
VARIABLE = "KVATLAS_FORK_SERVER"
KILLED = 137
GREETING = b"kvatlas fork server 1\n"
GREETING_SECONDS = 60.0
"""How long a cell waits for a fork: longer than importing torch takes, which the first one waits for."""
_FOLDERS = "kvatlas-"
# Keeps the pipes to the servers open for as long as this process lives.
_STARTED: list[subprocess.Popen[bytes]] = []
# What cells import from other packages; a lazy import of transformers counts only with its module's own name.
PRELOADED = (
    "torch",
    "transformers.cache_utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
)


def start() -> subprocess.Popen[bytes] | None:
    """Start a server for the commands that this process starts from now on; it ends when this process does.

    None where `KVATLAS_FORK_SERVER` is set already, or where a process does not survive a fork (macOS).
    """
    if VARIABLE in os.environ or sys.platform != "linux":
        return None
    _remove_abandoned(Path(tempfile.gettempdir()))
    # Short, because the path of a socket may have 107 bytes.
    path = Path(tempfile.mkdtemp(prefix=_FOLDERS)) / "socket"
    # One thread, so that a fork loses none; a cell sets its own number. Models are local by the time of a cell.
    calm = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-P", "-m", "kvatlas.pipeline.fork_server", str(path)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | calm)
    # It says a line when it listens.
    if server.stdout is not None and server.stdout.readline():
        os.environ[VARIABLE] = f"{sys.prefix}:{path}"
    _STARTED.append(server)
    return server


def _remove_abandoned(folder: Path) -> None:
    """Remove the folders of servers that were killed: nobody listens at their sockets any more."""
    for path in folder.glob(f"{_FOLDERS}*/socket"):
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            try:
                connection.connect(str(path))
            except ConnectionRefusedError:
                path.unlink()
                path.parent.rmdir()


def run(argv: Sequence[str], main: str) -> int | None:
    """Let the server run the cell of a command line, in this process's place; None where no fork of it answers.

    `main` is the function of command lines, MODULE:NAME; the fork imports it, and returns its exit code. A cell with an
    environment of its own has packages of its own, and imports these. The order is sent to a fork that has greeted, so
    that a server that died, or whatever else listens there, neither keeps a cell waiting nor runs it twice.
    """
    prefix, _, path = os.environ.get(VARIABLE, "").rpartition(":")
    if prefix != sys.prefix or list(argv[:2]) != ["job", "cell"]:
        return None
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.settimeout(GREETING_SECONDS)
            connection.connect(path)
            if _received(connection, len(GREETING)) != GREETING:
                return None
            connection.settimeout(None)
            socket.send_fds(connection, [b"\n"], [0, 1, 2])
        except OSError:
            return None
        order = {"main": main, "argv": list(argv), "cwd": os.getcwd(), "environment": dict(os.environ)}
        answer = ""
        with suppress(OSError), connection.makefile("rw", encoding="utf-8", errors="replace") as stream:
            stream.write(json.dumps(order) + "\n")
            stream.flush()
            answer = stream.readline()
    if not (answer.endswith("\n") and answer[:-1].isdecimal()):
        print("kvatlas: error: the cell was killed, by the system if memory ran out", file=sys.stderr)
        return KILLED
    return int(answer)


def _received(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes, or what comes before the other end closes."""
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


def serve(path: Path) -> None:
    """Answer until the pipe on stdin closes, which it does when the process that holds its other end is gone."""
    # An interrupt is for the cells; their workflow then ends, and this process with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        print("listening", flush=True)
        try:
            while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
                connection, _ = listener.accept()
                # At the first cell: a run of tables and pages alone needs no torch.
                preload()
                # Where no fork can be had the cell hears no greeting, and runs by itself.
                with connection, suppress(OSError):
                    if os.fork() == 0:
                        try:
                            listener.close()
                            _run_cell(connection)
                        finally:
                            os._exit(1)
        finally:
            path.unlink(missing_ok=True)
            path.parent.rmdir()


def preload() -> None:
    """Import the packages that cells need; a version without one of the modules costs time and nothing else."""
    for name in PRELOADED:
        with suppress(ImportError):
            importlib.import_module(name)


def _run_cell(connection: socket.socket) -> None:
    """Become the cell that a client asks for; does not return."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    connection.sendall(GREETING)
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    stream = connection.makefile("rw", encoding="utf-8")
    line = stream.readline()
    if len(descriptors) != 3 or not line.endswith("\n"):  # the client is gone
        os._exit(KILLED)
    order = json.loads(line)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    importlib.invalidate_caches()
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    code = 1
    try:
        module, _, name = order["main"].partition(":")
        code = getattr(importlib.import_module(module), name)(order["argv"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    stream.write(f"{code}\n")
    stream.flush()
    os._exit(code)


def _end_with(connection: socket.socket) -> None:
    """End this process when its client does, as if it had been killed itself."""
    try:
        connection.recv(1)
    finally:
        os._exit(KILLED)


if __name__ == "__main__":
    # Before libraries keep the streams that they log to.
    terminal.install()
    serve(Path(sys.argv[1]))
