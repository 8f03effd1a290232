"""Kill a run at random moments, again and again, and compare what it ends with: `python -m tests.faults.random_kills`.

A run is started, something of it is killed at a random moment (a cell; Snakemake itself, whose cell goes on; everything
at once, as when the power fails; the fork server; one of the jobs that follow the cells; or an interrupt from the
keyboard), and the same command continues. Each run that comes to its end must have the results of an undisturbed run;
then the next one starts from nothing, or from the cells, until all kills are spent.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support import killing
from tests.support.checkout import Checkout, forget, make_checkout, make_real_run

JOBS = ("verify", "aggregate", "results", "figure", "pages", "explorer")
MANNERS = ("cell", "snakemake", "everything", "interrupt", "fork server", *JOBS)
COMPARED = ("results.json", "trials.parquet")


@dataclass
class Campaign:
    """Kills at random moments of runs of one checkout.

    Args:
        targets: what is built. manners: what is killed. seconds_per_cell: makes the cells of stand-ins last.
    """

    checkout: Checkout
    seed: int
    targets: tuple[str, ...] = ()
    manners: tuple[str, ...] = MANNERS
    seconds_per_cell: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    finished: int = 0
    identical: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        started = time.monotonic()
        self._build()
        self.duration = time.monotonic() - started
        self.expected = self._results()

    def run(self, n_kills: int) -> None:
        """Spend the kills, then let the last run come to its end."""
        forget(self.checkout)
        while sum(self.kills.values()) < n_kills:
            manner = self.random.choice(self.manners)
            # A fifth of a run at most: work adds up over the kills, so that late moments are met as well.
            moment = self.random.uniform(0.03, 0.2) * self.duration
            if self._killed(manner, moment):
                self.kills[manner] += 1
                say(kill=sum(self.kills.values()), manner=manner, after=round(moment, 1))
            else:
                self._compare()
                forget(self.checkout) if self.random.random() < 0.5 else self._forget_report()
        self._build()
        self._compare()

    def _forget_report(self) -> None:
        """Keep the cells, so that the jobs after them are met more often."""
        for folder in ("reports", "results/*/tables", "results/*/verified", "results/*/figures"):
            for path in self.checkout.root.glob(folder):
                shutil.rmtree(path)

    def _killed(self, manner: str, moment: float) -> bool:
        """Start or continue the run and kill it at `moment` (seconds); False when it ended before."""
        with killing.background_run(self.checkout, *self.targets, seconds_per_cell=self.seconds_per_cell) as process:
            if self._comes(manner, moment, process):
                self._strike(manner, process)
            else:
                if process.returncode:
                    raise AssertionError(f"the run failed by itself; see {self.checkout.root}/logs")
                return False
            if manner != "everything":
                # Whatever is left goes on for a moment beside the next command's start.
                self._wait(process, 5 if manner == "snakemake" else killing.PATIENCE)
        self._unlock()
        return True

    def _comes(self, manner: str, moment: float, process: subprocess.Popen[str]) -> bool:
        """Wait for the moment, or for a job of the kind that is to be killed; False when the run ends before."""
        if manner not in JOBS:
            self._wait(process, moment)
            return process.poll() is None
        while process.poll() is None:
            if killing.commands(self.checkout, manner):
                # Most of its second is imports; what it writes comes at its end.
                time.sleep(self.random.uniform(0, 1.5))
                return process.poll() is None
            time.sleep(0.02)
        return False

    def _strike(self, manner: str, process: subprocess.Popen[str]) -> None:
        if manner in JOBS:
            killing.kill(killing.commands(self.checkout, manner) or [process.pid])
        elif manner == "fork server":
            killing.kill(killing.fork_servers(self.checkout) or [process.pid])
        elif manner == "cell":
            cells = killing.cells(self.checkout)
            # Between two cells there is none; then it is the workflow that is hit.
            killing.kill([self.random.choice(cells)] if cells else [process.pid])
        elif manner == "snakemake":
            killing.kill([process.pid])
        elif manner == "interrupt":
            killing.kill([process.pid], signal.SIGINT)
        else:
            killing.kill_all(self.checkout)

    def _wait(self, process: subprocess.Popen[str], seconds: float) -> None:
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return

    def _unlock(self) -> None:
        if killing.is_locked(self.checkout):
            self.checkout.snakemake("--unlock")

    def _build(self) -> None:
        self.checkout.snakemake(*self.targets)

    def _compare(self) -> None:
        self.finished += 1
        same = self._results() == self.expected
        self.identical += same
        say(run=self.finished, identical=same)

    def _results(self) -> dict[str, bytes]:
        folders = list((self.checkout.root / "reports").iterdir())
        return {f"{folder.name}/{name}": (folder / name).read_bytes() for folder in folders for name in COMPARED}


def say(**record: object) -> None:
    print(json.dumps(record), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--run",
        choices=("smoke", "tiny", "stand-ins"),
        default="smoke",
        help="config/smoke.yaml on the models fetched here; tiny random models; or cells without a model",
    )
    parser.add_argument("--folder", type=Path, help="where to copy the repository to (default: a temporary folder)")
    args = parser.parse_args()
    folder = args.folder or Path(tempfile.mkdtemp(prefix="kills-"))
    if args.run == "stand-ins":
        campaign = Campaign(make_checkout(folder / "repo"), args.seed, seconds_per_cell=1.0)
    elif args.run == "tiny":
        from tests.support.tiny_run import make_tiny_run

        campaign = Campaign(make_tiny_run(folder / "repo"), args.seed)
    else:
        campaign = Campaign(make_real_run(folder / "repo"), args.seed)
    say(undisturbed_seconds=round(campaign.duration, 1))
    started = time.monotonic()
    campaign.run(args.kills)
    say(
        kills=dict(campaign.kills),
        runs_finished=campaign.finished,
        identical=campaign.identical,
        seconds=round(time.monotonic() - started),
    )
    return 0 if campaign.identical == campaign.finished else 1


if __name__ == "__main__":
    sys.exit(main())
