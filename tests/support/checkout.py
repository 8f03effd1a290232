"""A copy of the repository whose experiments are stand-ins without a model, so that the whole workflow runs in seconds.

The Snakefile, the rules, the grid, the fingerprints, the analysis and the pages are the real ones. Stand-ins keep the
import closures of the real experiments (they name the cache under TYPE_CHECKING), so that edits rerun what they must.
"""

from __future__ import annotations

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

PROMPT_FILES = '''
"""Stand-in: prompts without a tokenizer."""
import os
from kvatlas.files import write_jsonl

TASKS = {"needle": "kvatlas.tasks.needle", "passkey": "kvatlas.tasks.passkey", "task_suite": "kvatlas.tasks.suite"}


def run(spec, inputs, output):
    write_jsonl(output, [
        {"id": f"needle-{spec['context']}-s{seed}-d{depth}", "seed": seed, "depth": depth, "ids": [1, 2, 3]}
        for seed in spec["seeds"] for depth in spec["depths"]
    ])
'''

PREFILL = '''
"""Stand-in: a prefill without a model."""
from typing import TYPE_CHECKING
from kvatlas.files import read_jsonl, write_text

if TYPE_CHECKING:
    import kvatlas.lm.cache


def run(spec, inputs, output):
    write_text(output, str(len(read_jsonl(inputs["prompts"]))))
    print("prefilled", len(read_jsonl(inputs["prompts"])))
'''

RECALL = '''
"""Stand-in: trials without a model; TOY_SECONDS makes it last, so that it can be killed."""
import os
import time
import zlib
from typing import TYPE_CHECKING
from kvatlas.files import read_jsonl, write_json, write_jsonl

if TYPE_CHECKING:
    import kvatlas.compression.apply
    import kvatlas.compression.build
    import kvatlas.lm.cache


def run(spec, inputs, output):
    time.sleep(float(os.environ.get("TOY_SECONDS", "0")))
    prompts = read_jsonl(inputs["prompts"])
    assert inputs["prefill"].read_text() == str(len(prompts))
    rows = [trial(spec, prompt) for prompt in prompts]
    write_jsonl(output, [{"cell": spec, "fingerprint": spec["fingerprint"]}, *rows])
    write_json(output.with_suffix(".timing.json"), {"seconds": 1.0, "decode_tokens_per_s": 10.0})


def trial(spec, prompt):
    draw = zlib.crc32(f"{spec['arm']} {prompt['id']}".encode()) % 100 / 100
    hit = spec["mode"] != "no_context" and (spec["method"] == "full" or draw < 0.5)
    nlls = [0.1 + draw / 10, 0.2]
    kept = spec["context"] // (1 if spec["method"] == "full" else 4)
    head = {key: spec[key] for key in ("study", "model", "arm", "method", "budget", "quantizer", "mode", "context")}
    return head | {
        "policy": spec["policy"]["name"], "haystack": "sentences", "seed": prompt["seed"], "depth": prompt["depth"],
        "id": prompt["id"], "hit": hit, "answer": "QZT-4821", "output": f"It is {draw}.", "output_ids": [1, 2],
        "gold_nlls": nlls, "ref_nlls": nlls, "self_nlls": nlls, "ref_kls": [draw, 0.0], "ref_top1": [hit, True],
        "hidden_cosine": 0.9, "needle_retained": draw, "prompt_tokens": spec["context"], "slots": float(kept),
        "full_slots": spec["context"], "resident_bytes": kept * 8, "payload_bytes": kept * 8, "peak_bytes": kept * 8,
        "full_bf16_bytes": spec["context"] * 4, "tokens_written": spec["context"],
    }
'''

EMBED = '''
"""Stand-in: embeddings without an embedder."""
from pathlib import Path
from kvatlas.files import read_jsonl, write_jsonl


def run(spec, inputs, output):
    write_jsonl(output, [
        {"study": row["study"], "arm": row["arm"], "group": Path(cell).stem, "id": row["id"], "embed_cosine": 0.5}
        for cell in spec["cells"] for row in read_jsonl(cell)[1:]
    ])
'''

ONLINE_LM = '''
"""Stand-in: a stream scored without a model."""
from typing import TYPE_CHECKING
from kvatlas.files import write_json, write_jsonl

if TYPE_CHECKING:
    import kvatlas.compression.apply
    import kvatlas.compression.build
    import kvatlas.lm.cache


def run(spec, inputs, output):
    write_jsonl(output, [{"cell": spec, "fingerprint": spec["fingerprint"]}, {"arm": spec["arm"]}])
'''

ONLINE_TABLE = '''
"""Stand-in: a study without a section."""


def aggregate(trials, options):
    return {}
'''

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


@dataclass
class Checkout:
    """A copied repository and how to run commands in it.

    Args:
        warm: cells are forks of a process that has imported torch; stand-ins need none.
        timeout: seconds that a command may take.
    """

    root: Path
    configfile: str = "config/toy.yaml"
    warm: bool = False
    timeout: float = 600.0

    def environment(self) -> dict[str, str]:
        """The environment of every command; the copy's own sources come first."""
        inherited = {name: value for name, value in os.environ.items() if name != fork_server.VARIABLE}
        start = {} if self.warm else {fork_server.VARIABLE: "off"}
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
        found = []
        for rule, body in jobs:
            output = re.search(r"^    output: ([^,\n]+)", body, flags=re.M)
            found.append(f"{rule} {output.group(1) if output else ''}".strip())
        return sorted(found)

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
        experiments = root / "src/kvatlas/experiments"
        (root / "src/kvatlas/experiments/prompts.py").write_text(PROMPT_FILES.lstrip())
        (root / "src/kvatlas/analysis/studies/online_lm.py").write_text(ONLINE_TABLE.lstrip())
        for name, text in (("prefill", PREFILL), ("recall", RECALL), ("embed", EMBED), ("online_lm", ONLINE_LM)):
            (experiments / f"{name}.py").write_text(text.lstrip())
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
    checkout.warm = True
    return checkout


def forget(checkout: Checkout) -> None:
    """Remove all that a run has made, but for what it has fetched."""
    for name in ("results", "reports", "logs", ".snakemake"):
        shutil.rmtree(checkout.root / name, ignore_errors=True)
