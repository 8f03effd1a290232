"""What a rerun costs after each kind of edit, against the whole run: `python -m benchmarks.rerun`.

By default on the real experiments with a tiny random model. `--configfile` takes a configuration whose models are in
resources/ already, such as config/smoke.yaml, and copies it with them. `--finished` edits a clone whose run is complete, and
undoes its edits at the end.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.common import measured, save
from tests.support.checkout import Checkout, make_real_run
from tests.support.tiny_run import make_tiny_run

POLICY = "src/kvatlas/compression/policies/{policy}.py"
EDITS = {
    "nothing": (None, ""),
    "a comment in the cache": ("src/kvatlas/lm/cache.py", "\n# A comment.\n"),
    "a template": ("src/kvatlas/reporting/templates/samples.md.j2", "\nAdded.\n"),
    "one figure": ("src/kvatlas/reporting/figures/f1_pareto.py", "\nADDED = 1\n"),
    "the analysis": ("src/kvatlas/analysis/studies/needle.py", "\nADDED = 1\n"),
    "one policy": (POLICY, "\nADDED = 1\n"),
}


def main() -> None:
    """Measure the whole run, then each edit on top of the one before."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configfile", help="default: the tiny run of the tests")
    parser.add_argument("--policy", default="random")
    parser.add_argument("--finished", type=Path, help="a clone whose run of the configuration is complete")
    parser.add_argument("--seconds", type=float, help="the wall seconds that it took")
    args = parser.parse_args()
    if args.finished:
        checkout = Checkout(args.finished.resolve(), configfile=args.configfile, forks=True)
        whole = {"wall_seconds": args.seconds}
    else:
        root = Path(tempfile.mkdtemp(prefix="rerun-")) / "repo"
        checkout = make_real_run(root, args.configfile) if args.configfile else make_tiny_run(root)
        whole = run(checkout)
    rows: list[dict[str, Any]] = [{"edit": "everything from nothing"} | whole]
    edited = {checkout.root / path.format(policy=args.policy) for path, _ in EDITS.values() if path is not None}
    before = {path: path.read_bytes() for path in edited}
    try:
        for name, (path, text) in EDITS.items():
            if path is not None:
                checkout.append(path.format(policy=args.policy), text)
            cost = run(checkout)
            share = round(cost["wall_seconds"] / whole["wall_seconds"], 3)
            rows.append({"edit": name} | cost | {"share_of_wall": share})
    finally:
        for path, data in before.items():
            path.write_bytes(data)
    save("rerun", rows, configuration=args.configfile or "tiny", policy=args.policy)


def run(checkout: Checkout) -> dict[str, Any]:
    """Run the workflow, and count the jobs that it had; CPU time and memory of forked cells cannot be seen from here."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", checkout.configfile]
    measurement = measured(command, cwd=checkout.root, env=checkout.environment())
    return {"jobs": measurement["text"].count("Finished jobid: "), "wall_seconds": measurement["wall_seconds"]}


if __name__ == "__main__":
    main()
