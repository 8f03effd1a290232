"""Running one cell of any kind.

A kind is a module of this package. Where its output is trials, it has `measure(spec, inputs) -> Measured`, and the cell
file is written here; where its output is another file, it has `write(spec, inputs, output)`. Imports torch only with
the kind.
"""

from __future__ import annotations

import importlib
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.experiments import cell_file


def run(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path, *, fingerprint: str = "") -> None:
    """Run the cell `spec` on the files `inputs` and write `output`; a cell of trials gets a sidecar with its timing.

    `fingerprint` is that of the code, and stands in the header of a cell of trials. Raises KvatlasError for mistakes of
    the user, and writes nothing then.
    """
    kind = importlib.import_module(f"kvatlas.experiments.{spec['kind']}")
    if not hasattr(kind, "measure"):
        kind.write(spec, inputs, output)
        return
    started = time.perf_counter()
    measured: cell_file.Measured = kind.measure(spec, inputs)
    cell_file.write(output, spec, fingerprint, measured.trials)
    process = {"peak_rss_mib": _peak_rss_mib(), "wall_seconds": time.perf_counter() - started}
    cell_file.write_timing(output, {**measured.timing, **process})


def _peak_rss_mib() -> float:
    """Return the largest resident memory that this process has had, MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux counts in KiB, macOS in bytes.
    return round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
