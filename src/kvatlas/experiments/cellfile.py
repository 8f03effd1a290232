"""The file of a cell: a header, then one trial per line, all deterministic; durations go to a sidecar."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvatlas.files import write_json, write_jsonl
from kvatlas.paths import timing_of


def write_cell(output: Path, spec: Mapping[str, Any], trials: Sequence[Mapping[str, Any]]) -> None:
    """Write a cell: its spec and fingerprint on the first line, then its trials."""
    body = {key: value for key, value in spec.items() if key != "fingerprint"}
    write_jsonl(output, [{"cell": body, "fingerprint": spec.get("fingerprint", "")}, *trials])


@dataclass
class Stopwatch:
    """Durations of the parts of a cell, in seconds, and whatever else may differ between two runs of it."""

    record: dict[str, Any] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to `<name>_seconds`."""
        before = time.perf_counter()
        yield
        key = f"{name}_seconds"
        self.record[key] = self.record.get(key, 0.0) + time.perf_counter() - before

    def write(self, output: Path) -> None:
        """Write the sidecar of a cell, with its wall time and peak resident memory (MiB)."""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # Linux counts in KiB, macOS in bytes.
        self.record["peak_rss_mib"] = round(peak / (2**20 if sys.platform == "darwin" else 2**10), 1)
        self.record["wall_seconds"] = time.perf_counter() - self.started
        write_json(timing_of(output), {key: _rounded(value) for key, value in self.record.items()})


def _rounded(value: Any) -> Any:
    return round(value, 6) if isinstance(value, float) and value > 1e-3 else value
