"""Lose or spoil every pair of kinds of files of a finished toy run, and run it again: `python -m tests.faults.lost_files`.

Prints how many pairs were tried, and which did not come back with the same bytes; `--minutes` bounds it, `--seed` shuffles.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.support import run_files
from tests.support.checkout import make_checkout


def main() -> int:
    """Run as many cases as the time allows; returns 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkout = make_checkout(Path(folder) / "repo")
        checkout.snakemake()
        before, kinds = run_files.contents(checkout), run_files.by_kind(checkout)
        cases = list(itertools.product(itertools.combinations(kinds, 2), run_files.LOSSES, run_files.LOSSES))
        random.Random(args.seed).shuffle(cases)
        failed, tried, end = [], 0, time.monotonic() + 60 * args.minutes
        for (one, other), first, second in cases:
            if time.monotonic() > end:
                break
            tried += 1
            first(checkout.root / kinds[one])
            second(checkout.root / kinds[other])
            done = checkout.snakemake(check=False)
            if done.returncode or run_files.contents(checkout) != before:
                failed.append(f"{first.__name__} {one}, {second.__name__} {other}: exit {done.returncode}")
                checkout.snakemake(check=False)
        print(f"{tried} of {len(cases)} pairs tried, {tried - len(failed)} came back with the same bytes")
        print("\n".join(failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
