"""How fast this machine is at what a model does, measured in a second and remembered: arithmetic, and reading memory.

One thread, in fp32, with numpy: what a job of a CPU run has, within a factor of two. Knows nothing of models.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, write_json

MEMORY = Path("resources/.machine.json")
_SIDE, _ROWS, _MEGABYTES, _REPEATS = 1024, 256, 64, 3


@dataclass(frozen=True)
class Machine:
    """Floating-point operations and bytes read in a second, by one thread."""

    flops_per_s: float
    bytes_per_s: float


def measured() -> Machine:
    """Return the speed of this machine, from an earlier call where the processor is the same."""
    identity = f"{platform.machine()} {platform.processor()} {os.cpu_count()} numpy {np.__version__}"
    try:
        known = read_json(MEMORY)
        if known["of"] == identity:
            return Machine(known["flops_per_s"], known["bytes_per_s"])
    except (KvatlasError, KeyError, TypeError):
        pass
    machine = _measure()
    if MEMORY.parent.is_dir():
        write_json(MEMORY, {"of": identity} | asdict(machine))
    return machine


def _measure() -> Machine:
    """Time a product of matrices, as many rows as a block of prompts, and the reading of weights for one row.

    The threads of numpy's BLAS share the product, so that the time counts on all cores: it is divided among them.
    """
    rows, weights = np.ones((_ROWS, _SIDE), np.float32), np.ones((_SIDE, _SIDE), np.float32)
    product = _fastest(lambda: rows @ weights)
    large = np.ones((_MEGABYTES << 20) // 4, np.float32)
    read = _fastest(large.sum)
    return Machine(2 * rows.size * _SIDE / product / _threads(), large.nbytes / read)


def _threads() -> int:
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return int(limit) if limit.isdecimal() and int(limit) > 0 else os.cpu_count() or 1


def _fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
