"""Dry run and job selection of a synthetic grid: `python -m benchmarks.scale [--cells 1000 10000]`.

The dry run is what a user waits for before the first job starts. Job selection is measured on a run in which every job
is a touch: what is left is Snakemake's own work per job.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import measured, save
from tests.support.checkout import TOY, Checkout, make_checkout

ARMS = 6  # three methods at two budgets
EXTRA = 2  # the full cache, and that of the question without its context


def synthetic(cells: int) -> dict[str, Any]:
    """A needle study of about so many recall cells, one seed in each."""
    config = copy.deepcopy(TOY)
    needle = config["studies"]["needle"]
    needle["seeds"] = max(1, cells // (ARMS + EXTRA))
    config["studies"] = {"needle": needle}
    return config


def snakemake(checkout: Checkout, *arguments: str) -> dict[str, Any]:
    """Measure one call of Snakemake in the checkout."""
    command = [sys.executable, "-m", "snakemake", "--configfile", checkout.configfile, "--quiet", "all", *arguments]
    measurement = measured(command, cwd=checkout.root, env=checkout.environment())
    measurement.pop("text")
    return measurement


def main() -> None:
    """Measure each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, nargs="+", default=[1000, 10000])
    parser.add_argument("--select", type=int, default=1000, help="measure job selection up to so many cells")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        checkout = make_checkout(Path(folder) / "repo")
        for cells in args.cells:
            checkout.configure(synthetic(cells))
            rows.append({"cells": cells, "what": "dry run"} | snakemake(checkout, "--dry-run", "--cores", "2"))
            if cells <= args.select:
                touched = snakemake(checkout, "--touch", "--cores", "64")
                rows.append({"cells": cells, "what": "selection and bookkeeping of all jobs"} | touched)
    save("scale", rows)


if __name__ == "__main__":
    main()
