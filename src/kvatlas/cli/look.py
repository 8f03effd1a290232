"""`kvatlas try MODEL`: which method at this ratio, on this model, in a few minutes.

Rounds of one haystack draw with all arms on it, until the time is over; the table is printed after every round, kept when the
command is stopped, and becomes a page at the end. The same command goes on with further rounds.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

from kvatlas.cli.local_models import opened
from kvatlas.compression.budget import parse_budget
from kvatlas.errors import KvatlasError
from kvatlas.files import write_json
from kvatlas.grid import unfold
from kvatlas.grid.arms import Arm
from kvatlas.grid.cells import Cell, Grid
from kvatlas.lm.catalog import load_models
from kvatlas.paths import MODELS_FILE, model_file
from kvatlas.pipeline.local_run import LocalRun
from kvatlas.reporting.tables import Table

BASELINE = "sink_recent"
METHODS = (BASELINE, "snapkv", "tova", "h2o", "pinned_emeans", "snapkv_emeans", "keydiff", "random")
QUANTIZERS = ("int8", "int4", "kivi4")
DEPTHS = (10, 50, 90)
ROUNDS = 200
RUN, STUDY = "try", "needle"


def add_command(parser: ArgumentParser) -> None:
    """Add the arguments of `kvatlas try`."""
    parser.add_argument("model", metavar="MODEL", help="a folder, a name of config/models.yaml, or a Hub id")
    parser.add_argument("--ratio", default="4x", help="how much smaller the middle of the cache gets (default: 4x)")
    parser.add_argument("--minutes", type=float, default=5, help="stop after the round that passes this (default: 5)")
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt (default: 512)")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), metavar="METHOD", help="policies to compare")
    parser.add_argument("--output", type=Path, help="folder of the trials and the page (default: kvatlas-try/MODEL)")


def configuration(args: Namespace, model: str) -> dict[str, Any]:
    """Return the configuration that the command stands for."""
    parse_budget(args.ratio)
    arms = {"methods": args.methods, "budgets": [args.ratio]}
    study = {
        "contexts": [args.context],
        "seeds": ROUNDS,
        "seeds_per_shard": 1,
        "depths": list(DEPTHS),
        "new_tokens": 20,
        "n_sinks": 4,
        "n_recent": 32,
        "modes": {"aware": [arms, {"methods": ["full"], "quantizers": list(QUANTIZERS)}]},
    }
    return {"run": RUN, "title": model, "models": [model], "embedder": "", "methods": {}, "studies": {STUDY: study}}


def look(args: Namespace) -> None:
    """Run rounds until the time is over, print the table after each, and write the page."""
    from kvatlas.lm.named_model import find

    catalog = load_models(MODELS_FILE) if Path(MODELS_FILE).is_file() else {}
    name, entry = find(args.model, catalog)
    grid = unfold.grid(configuration(args, name))
    fetched = Path(model_file(name)).parent.resolve() if name in catalog else None
    output = args.output or Path("kvatlas-try") / name
    output.mkdir(parents=True, exist_ok=True)
    with chdir(output):
        _share(fetched, name)
        rounds = Rounds(grid, name, entry, LocalRun(grid, {name: entry}, {}))
        try:
            rounds.run(60 * args.minutes, args.ratio)
        except KeyboardInterrupt:
            _say("stopped; the same command goes on")
        rounds.finish(args.ratio)


def _share(fetched: Path | None, name: str) -> None:
    """Let the look use the model that the repository has fetched, or will have."""
    here = Path(model_file(name)).parent
    if fetched is not None and not here.exists():
        here.parent.mkdir(parents=True, exist_ok=True)
        fetched.mkdir(parents=True, exist_ok=True)
        here.symlink_to(fetched)


class Rounds:
    """The rounds of one look, run in the working directory."""

    def __init__(self, grid: Grid, model: str, entry: Mapping[str, Any], run: LocalRun) -> None:
        self.grid, self.model, self.title, self.local = grid, model, str(entry["title"]), run
        self.finished: list[Cell] = []

    def run(self, seconds: float, ratio: str) -> None:
        """Run rounds until `seconds` are over; those of an earlier call are not run again."""
        started = time.monotonic()
        with opened(self.local):
            for number in range(ROUNDS):
                cells = [cell for cell in self.grid.trial_cells() if cell.group.endswith(f"-{number}")]
                left = self.local.left(cells)
                if left and number and time.monotonic() - started > seconds:
                    return
                for done, cell in enumerate(left, 1):
                    _say(f"round {number + 1}, {done} of {len(left)}: {cell.arm} {cell.spec['mode']}")
                    self.local.run(cell)
                self.local.release(cells)
                self.finished += cells
                if left or number == 0:
                    print(f"\n{self.text(ratio)}", flush=True)

    def text(self, ratio: str) -> str:
        """Return the summary and the table so far as text."""
        from kvatlas.reporting import quick_look

        results = self.results()
        shown = quick_look.table(results, self.model, Arm(BASELINE, ratio).id)
        return f"{quick_look.summary(results, self.model, self.title)}\n\n{aligned(shown)}"

    def results(self) -> dict[str, Any]:
        """Return the section of the finished rounds, in the form of results.json."""
        from kvatlas.analysis import trials
        from kvatlas.analysis.studies.recall_contrasts import Pair
        from kvatlas.pipeline.tables import aggregate

        rows = trials.load([cell.output for cell in self.finished], None)
        baselines = {cell.arm for cell in self.finished if cell.spec["method"] == BASELINE}
        arms = {cell.arm for cell in self.finished} - baselines
        pairs = [Pair(arm, baseline, "recall") for arm in sorted(arms) for baseline in sorted(baselines)]
        return {"run": RUN, "studies": {STUDY: aggregate(STUDY, rows, {"pairs": pairs})}}

    def finish(self, ratio: str) -> None:
        """Write the page and the results of the finished rounds. Raises KvatlasError when there is none."""
        from kvatlas.reporting import quick_look

        if not self.finished:
            raise KvatlasError("try: no round was finished; give it more --minutes, or a smaller --context")
        results = self.results()
        write_json(Path("results.json"), results)
        page = quick_look.write_page(results, self.model, self.title, Arm(BASELINE, ratio).id, Path())
        print(f"\n{page.resolve()}")


def aligned(table: Table) -> str:
    """Return a table as aligned text."""
    lines = [table.columns, *(row.cells for row in table.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))]
    shown = []
    for line in lines:
        cells = [
            text.rjust(w) if c in table.numeric else text.ljust(w)
            for c, (text, w) in enumerate(zip(line, widths, strict=True))
        ]
        shown.append("  ".join(cells).rstrip())
    return "\n".join(shown)


def _say(message: str) -> None:
    print(f"kvatlas: {message}", file=sys.stderr, flush=True)
