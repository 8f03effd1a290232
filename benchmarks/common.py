"""What the benchmarks share: where measurements are kept, and the machine that they were made on.

Benchmarks are run by hand, `python -m benchmarks.scale` and so on, from the root of the repository; none is a test.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "measured"


def save(name: str, rows: Sequence[dict[str, Any]], **facts: Any) -> None:
    """Keep the rows of a benchmark with the machine and its load."""
    machine = {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 1),
    }
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **facts, "rows": list(rows)}, indent=1, sort_keys=True) + "\n")
    print(path)


def measured(command: Sequence[str], **options: Any) -> dict[str, Any]:
    """Run a command and return its wall and CPU seconds, its peak resident memory (MiB) and what it printed.

    CPU time is the figure to compare where other work shares the machine.
    """
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command}: exit {process.returncode}\n{text[-3000:]}")
    return {
        "wall_seconds": round(time.perf_counter() - started, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mib": round(usage.ru_maxrss / 1024),
        "text": text,
    }


def python(code: str, *arguments: str) -> dict[str, Any]:
    """Run Python code in a fresh process; its last line of output is JSON, which is merged into the measurement."""
    measurement = measured([sys.executable, "-c", code, *arguments])
    return measurement | json.loads(measurement.pop("text").splitlines()[-1])
