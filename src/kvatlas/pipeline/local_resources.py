"""How much memory and how many GPUs the local jobs of a run may use on this machine; read by `profiles/default`.

Knows neither the configuration nor the grid, and imports no torch: a profile is read before anything else.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TextIO

# What the system, Snakemake itself and errors of the estimates may take.
USABLE_SHARE = 0.9
# The locks of the GPUs that this process has claimed; the system lets them go with the process.
_HELD: list[TextIO] = []
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_mb() -> int:
    """Return the memory that jobs may declare together, in MB: most of the machine's, or of its container's."""
    limits = [limit for path in _CGROUP_LIMITS if (limit := _limit_of(Path(path))) is not None]
    return max(1, int(min([_installed_bytes(), *limits]) * USABLE_SHARE) // 2**20)


def gpus() -> int:
    """Return how many GPU jobs may run side by side: the NVIDIA GPUs in sight, at least 1.

    Where there is none, jobs ask for no GPU, or fail with the message that names `device`.
    """
    return max(1, len(visible_gpus()))


def visible_gpus() -> list[str]:
    """Return the names by which CUDA knows the GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [part.strip() for part in visible.split(",") if part.strip()]
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    listed = subprocess.run([tool, "--list-gpus"], capture_output=True, text=True, check=False).stdout
    return [str(number) for number, _ in enumerate(re.findall(r"^GPU ", listed, flags=re.M))]


def claim_gpu(folder: Path | None = None) -> str | None:
    """Show CUDA one GPU alone that no other job of this user holds, until this process ends; return its name.

    Snakemake counts GPUs but hands out no numbers, so that all jobs would land on the first. Nothing happens where there
    is no choice, or where every GPU is held. Locks lie in `folder`, the folder for temporary files by default.
    """
    names = visible_gpus()
    for name in names if len(names) > 1 else ():
        lock = (folder or Path(tempfile.gettempdir())) / f"kvatlas-{os.getuid()}-gpu-{name}.lock"
        stream = lock.open("w")
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            continue
        _HELD.append(stream)
        os.environ["CUDA_VISIBLE_DEVICES"] = name
        return name
    return None


def _installed_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _limit_of(path: Path) -> int | None:
    """Return the bytes that a control group allows, or None where it sets no limit."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    # Version 1 writes an absurdly large number for "no limit"; the machine's memory is less than that.
    return int(text) if text.isdigit() else None
