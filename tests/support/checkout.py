"""A copy of the repository whose experiments are stand-ins without a model, so that the whole workflow runs in seconds.

The Snakefile, the rules, the grid, the fingerprints, the analysis and the pages are the real ones. Stand-ins are in
`tests/stand_ins`, laid out as the package; they keep the import closures of the real experiments (they name the cache
under TYPE_CHECKING), so that edits rerun what they must.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvatlas.pipeline import fork_server
from tests.support.places import ROOT

COPIED = ("Snakefile", "workflow", "profiles", "config", "src", "environment.yml")

STAND_INS = ROOT / "tests/stand_ins"

TOY: dict[str, Any] = {
    "run": "toy",
    "title": "Toy run",
    "models": ["smollm2-135m"],
    "embedder": "all-minilm-l6-v2",
    "device": "cpu",
    "methods": {"snapkv": {"window": 16}},
    "studies": {
        "needle": {
            "contexts": [256],
            "seeds": 2,
            "seeds_per_shard": 1,
            "depths": [30, 70],
            "new_tokens": 8,
            "n_sinks": 4,
            "n_recent": 32,
            "modes": {"aware": {"methods": ["random", "snapkv", "h2o"], "budgets": ["4x", "8x"]}},
        },
        "online_lm": {
            "text": "lee-news",
            "tokens": 64,
            "n_sinks": 4,
            "n_recent": 16,
            "arms": [
                {"methods": ["random", "snapkv", "h2o"], "budgets": ["50%"]},
                {"methods": ["full"], "quantizers": ["int8"]},
            ],
        },
    },
}


def small_config() -> dict[str, Any]:
    """The toy configuration with three arms of one study on one group, and a question without its context."""
    config = copy.deepcopy(TOY)
    needle = config["studies"]["needle"]
    needle["seeds"] = 1
    needle["modes"]["aware"] = {"methods": ["random", "h2o"], "budgets": ["4x"]}
    config["studies"] = {"needle": needle}
    return config


@dataclass
class Checkout:
    """A copied repository and how to run commands in it.

    Args:
        forks: cells are forks of a process that has imported torch; stand-ins need none.
        timeout: seconds that a command may take.
    """

    root: Path
    configfile: str = "config/toy.yaml"
    forks: bool = False
    timeout: float = 600.0

    def environment(self) -> dict[str, str]:
        """The environment of every command; the copy's own sources come first."""
        inherited = {name: value for name, value in os.environ.items() if name != fork_server.VARIABLE}
        start = {} if self.forks else {fork_server.VARIABLE: "off"}
        return inherited | start | {"PYTHONPATH": str(self.root / "src"), "OMP_NUM_THREADS": "1"}

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a Python module of the checkout."""
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env=self.environment(),
            text=True,
            capture_output=True,
            check=False,
            timeout=self.timeout,
        )
        if check and done.returncode:
            raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def snakemake(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run the workflow with the checkout's configuration."""
        configured = ("--configfile", self.configfile) if "--configfile" not in arguments else ()
        return self.run("snakemake", "--cores", "2", *arguments, *configured, check=check)

    def pending(self, *arguments: str) -> list[str]:
        """The jobs that a dry run lists, as `rule output`."""
        text = self.snakemake("--dry-run", *arguments).stdout
        jobs = re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", text, flags=re.M | re.S)
        listed = []
        for rule, body in jobs:
            output = re.search(r"^    output: ([^,\n]+)", body, flags=re.M)
            listed.append(f"{rule} {output.group(1) if output else ''}".strip())
        return sorted(listed)

    def counts(self, *arguments: str) -> dict[str, int]:
        """How many jobs of each rule a dry run lists."""
        return dict(Counter(job.split()[0] for job in self.pending(*arguments)))

    def configure(self, config: dict[str, Any]) -> None:
        """Write the checkout's configuration."""
        (self.root / self.configfile).write_text(yaml.safe_dump(config, sort_keys=False))

    def edit(self, path: str, old: str, new: str) -> None:
        """Replace a piece of text in one file, once."""
        file = self.root / path
        text = file.read_text()
        assert old in text, f"{path} does not contain {old!r}"
        file.write_text(text.replace(old, new, 1))

    def append(self, path: str, text: str) -> None:
        """Add text at the end of a file."""
        with (self.root / path).open("a") as stream:
            stream.write(text)


def make_checkout(root: Path, *, stand_ins: bool = True) -> Checkout:
    """Copy the repository to `root`; models count as fetched."""
    root.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, root / name)
    if stand_ins:
        shutil.copytree(
            STAND_INS, root / "src/kvatlas", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for model in ("smollm2-135m", "all-minilm-l6-v2"):
        file = root / "resources/models" / model / "provenance.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"name": model, "files": {}}))
    text = root / "resources/text/lee-news.txt"
    text.parent.mkdir(parents=True)
    text.write_text("A text.\n")
    checkout = Checkout(root)
    checkout.configure(TOY)
    return checkout


def make_real_run(root: Path, configfile: str = "config/smoke.yaml") -> Checkout:
    """Copy the repository to `root` with the real models that it has fetched, and a configuration to run.

    Raises AssertionError where they are not fetched yet.
    """
    checkout = make_checkout(root, stand_ins=False)
    fetched = ROOT / "resources"
    assert fetched.is_dir(), "no models here yet: run snakemake --cores all --configfile config/smoke.yaml first"
    shutil.rmtree(root / "resources")
    shutil.copytree(fetched, root / "resources", copy_function=os.link)
    checkout.configfile = configfile
    checkout.forks = True
    return checkout


def forget(checkout: Checkout) -> None:
    """Remove all that a run has made, but for what it has fetched."""
    for name in ("results", "reports", "logs", ".snakemake"):
        shutil.rmtree(checkout.root / name, ignore_errors=True)
