"""Everything that can happen to a run, tried on runs without a model: `python -m tests.faults.campaign`.

Prints a table: what was tried how often, and how often the same results came of it. `docs/faults.md` says what it found last.
Kills of runs on real models are `tests.faults.random_kills`, losses of every pair of files `tests.faults.lost_files`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults import publish_kills, surroundings
from tests.faults.random_kills import Campaign
from tests.support.checkout import Checkout, make_checkout, small_config

CLOSED = ("results", "results/toy/cells", "results/toy/tables", "reports", "reports/toy/figures", "logs", ".snakemake")
TARGETS = ("reports/toy/results.json",)
Attempt = Callable[[Path, int], tuple[int, list[str]]]


def small_run(folder: Path) -> Checkout:
    """A checkout of a small run below `folder`."""
    checkout = make_checkout(folder / "repo")
    checkout.configure(small_config())
    return checkout


def kills(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """Kills at random moments."""
    campaign = Campaign(small_run(folder), seed=rounds, seconds_per_cell=0.5)
    campaign.run(rounds)
    different = campaign.finished - campaign.identical
    return rounds, [f"{different} of {campaign.finished} runs ended with other results"] if different else []


def publishing(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """Kills while a report is published."""
    checkout = small_run(folder)
    checkout.snakemake()
    return rounds, publish_kills.kill_publishing(checkout.root / "reports/toy", rounds)


def full_disk(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """A disk with too little space, another space each time."""
    with surroundings.disk(folder / "disk", mebibytes=256) as disk:
        return rounds, surroundings.full_disk(small_run(disk), rounds)


def rights(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """Folders of a run, and HOME, that may not be written."""
    checkout = small_run(folder)
    return len(CLOSED) + 1, [
        *surroundings.without_rights(checkout, CLOSED),
        *surroundings.without_a_home(checkout, folder / "home"),
    ]


def clock(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """All files of a run are of the future."""
    checkout = small_run(folder)
    checkout.snakemake()
    return 1, surroundings.clock_back(checkout)


def changed_bytes(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """One byte of a file of every kind changed, its time kept."""
    return 17, surroundings.changed_bytes(small_run(folder), rounds)


def two_runs(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """Two configurations at once, in a folder whose path has blanks, quotes and letters of other scripts."""
    return 1, surroundings.two_runs(small_run(folder / surroundings.ODD_NAME), TARGETS)


ATTEMPTS: tuple[Attempt, ...] = (two_runs, clock, rights, changed_bytes, full_disk, publishing, kills)


def main() -> int:
    """Try all, or the one that is named; returns 1 where a result was another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="kills and full disks (default: 20 each)")
    parser.add_argument("--only", choices=[attempt.__name__ for attempt in ATTEMPTS])
    args = parser.parse_args()
    failed = False
    for attempt in ATTEMPTS:
        if args.only in (None, attempt.__name__):
            with tempfile.TemporaryDirectory() as folder:
                tried, wrong = attempt(Path(folder), args.rounds)
            print(
                f"| {(attempt.__doc__ or '').strip()} | {tried} | {tried - len(wrong)} |", *wrong, sep="\n", flush=True
            )
            failed |= bool(wrong)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
