"""The table of what an edit reruns, as exact sets of jobs: real edits in a copied checkout, dry runs compared.

The toy grid has three methods at two budgets in the needle study (rule recall), and the same methods and a quantizer in
the online study (rule online_lm).
"""

from __future__ import annotations

import copy
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.checkout import TOY, Checkout

MODEL = "smollm2-135m"
NEEDLE_GROUPS = ("aware-256-0", "aware-256-1")
NO_CONTEXT_GROUPS = ("no_context-256-0", "no_context-256-1")
STREAM = "online-64-0"
ARMS = ("full", "h2o-4x", "h2o-8x", "random-4x", "random-8x", "snapkv-4x", "snapkv-8x")
STREAM_ARMS = ("full", "full-int8", "h2o-50pct", "random-50pct", "snapkv-50pct")
NOTHING: set[str] = set()

Edit = Callable[[Checkout], object]


def recalls(arms: Iterable[str], groups: Iterable[str] = NEEDLE_GROUPS) -> set[str]:
    return {f"recall results/toy/cells/needle/{MODEL}/{arm}/{group}.jsonl" for arm in arms for group in groups}


def streams(arms: Iterable[str]) -> set[str]:
    return {f"online_lm results/toy/cells/online_lm/{MODEL}/{arm}/{STREAM}.jsonl" for arm in arms}


def verified(study: str, groups: Iterable[str]) -> set[str]:
    return {f"verify results/toy/verified/{study}/{MODEL}/{group}.json" for group in groups}


def prefills(groups: Iterable[str]) -> set[str]:
    return {f"prefill results/toy/prefill/needle/{MODEL}/{group}.json" for group in groups}


def prompts(groups: Iterable[str]) -> set[str]:
    return {f"prompts results/toy/prompts/needle/{MODEL}/{group}.jsonl" for group in groups}


def pages() -> set[str]:
    return {"pages reports/toy/README.md", "all"}


def explorer() -> set[str]:
    return {"explorer reports/toy/explorer.html", "all"}


def figures(checkout: Checkout) -> set[str]:
    names = [path.stem for path in (checkout.root / "src/kvatlas/reporting/figures").glob("f[0-9]*.py")]
    return {f"figure results/toy/figures/{name}.json" for name in names} | {"all"}


def report(checkout: Checkout) -> set[str]:
    """Everything behind the tables."""
    return {"results reports/toy/results.json"} | figures(checkout) | pages() | explorer()


def tables(*studies: str) -> set[str]:
    return {f"aggregate results/toy/tables/{study}.json" for study in studies}


def after(checkout: Checkout, *studies: str) -> set[str]:
    """Everything behind the verified groups of some studies."""
    embedded = {f"embed results/toy/embeddings/{MODEL}.jsonl"} if "needle" in studies else NOTHING
    return embedded | tables(*studies) | report(checkout)


def every_model_cell(checkout: Checkout) -> set[str]:
    groups = NEEDLE_GROUPS + NO_CONTEXT_GROUPS
    cells = recalls(ARMS) | recalls(["full"], NO_CONTEXT_GROUPS) | streams(STREAM_ARMS) | prefills(groups)
    return cells | verified("needle", groups) | verified("online_lm", [STREAM]) | after(checkout, "needle", "online_lm")


def one_method(checkout: Checkout, method: str) -> set[str]:
    cells = recalls([f"{method}-4x", f"{method}-8x"]) | streams([f"{method}-50pct"])
    groups = verified("needle", NEEDLE_GROUPS) | verified("online_lm", [STREAM])
    return cells | groups | after(checkout, "needle", "online_lm")


def append(path: str, text: str = "\nADDED = 1\n") -> Edit:
    return lambda checkout: checkout.append(path, text)


def reconfigure(change: Callable[[dict], object]) -> Edit:
    def edit(checkout: Checkout) -> None:
        config = copy.deepcopy(TOY)
        change(config)
        checkout.configure(config)

    return edit


def add_budget(config: dict) -> None:
    config["studies"]["needle"]["modes"]["aware"]["budgets"].append("16x")


def add_context(config: dict) -> None:
    config["studies"]["needle"]["contexts"].append(128)


def add_seed(config: dict) -> None:
    config["studies"]["needle"]["seeds"] = 3


def comment_everywhere(checkout: Checkout) -> None:
    for path in (checkout.root / "src").rglob("*.py"):
        text = path.read_text()
        reworded = re.sub(r'\A"""', '"""Reworded. ', text)
        path.write_text(f"# A comment.\n{reworded}\n\n# Another one.\n")


def register_policy(checkout: Checkout) -> None:
    folder = checkout.root / POLICIES
    text = (folder / "random.py").read_text()
    (folder / "another.py").write_text(text.replace('Registration("random"', 'Registration("another"'))


@dataclass(frozen=True)
class Row:
    """One row of the table: an edit, and the jobs that it makes necessary."""

    edit: Edit
    jobs: Callable[[Checkout], set[str]]


POLICIES = "src/kvatlas/compression/policies"
REPORTING = "src/kvatlas/reporting"
ROWS = {
    "one policy's file": Row(append(f"{POLICIES}/random.py"), lambda c: one_method(c, "random")),
    "another policy's file": Row(append(f"{POLICIES}/h2o.py"), lambda c: one_method(c, "h2o")),
    "a quantizer": Row(
        append("src/kvatlas/compression/quantizers/integer.py"),
        lambda c: streams(["full-int8"]) | verified("online_lm", [STREAM]) | after(c, "online_lm"),
    ),
    "a template": Row(append(f"{REPORTING}/templates/samples.md.j2", "\nAdded.\n"), lambda _: pages()),
    "the explorer": Row(append(f"{REPORTING}/templates/explorer/main.js", "\n// Added.\n"), lambda _: explorer()),
    # Its caption is on the page.
    "a figure": Row(
        append(f"{REPORTING}/figures/f1_pareto.py"),
        lambda _: {"figure results/toy/figures/f1_pareto.json"} | pages(),
    ),
    "the figures' style": Row(append(f"{REPORTING}/style.py"), lambda c: figures(c) | pages() | explorer()),
    "an analysis": Row(append("src/kvatlas/analysis/studies/needle.py"), lambda c: tables("needle") | report(c)),
    "comments and docstrings everywhere": Row(comment_everywhere, lambda _: NOTHING),
    "a policy registered and not yet used": Row(register_policy, lambda _: NOTHING),
    "a budget added": Row(
        reconfigure(add_budget),
        lambda c: (
            recalls(["random-16x", "snapkv-16x", "h2o-16x"]) | verified("needle", NEEDLE_GROUPS) | after(c, "needle")
        ),
    ),
    "a context added": Row(
        reconfigure(add_context),
        lambda c: (
            added_groups(["aware-128-0", "aware-128-1"], ["no_context-128-0", "no_context-128-1"]) | after(c, "needle")
        ),
    ),
    "a seed added": Row(
        reconfigure(add_seed), lambda c: added_groups(["aware-256-2"], ["no_context-256-2"]) | after(c, "needle")
    ),
    "a method removed": Row(
        reconfigure(lambda config: config["studies"]["needle"]["modes"]["aware"]["methods"].remove("h2o")),
        lambda c: verified("needle", NEEDLE_GROUPS) | after(c, "needle"),
    ),
    "a caption": Row(
        lambda checkout: checkout.edit(f"{REPORTING}/figures/f1_pareto.py", "Needle recall (top)", "Recall (top)"),
        lambda _: {"figure results/toy/figures/f1_pareto.json"} | pages(),
    ),
    "the cache": Row(append("src/kvatlas/lm/cache.py"), every_model_cell),
    "the attention tap": Row(append("src/kvatlas/lm/attention.py"), every_model_cell),
}


def added_groups(aware: list[str], no_context: list[str]) -> set[str]:
    groups = [*aware, *no_context]
    return (
        recalls(ARMS, aware)
        | recalls(["full"], no_context)
        | prefills(groups)
        | prompts(groups)
        | verified("needle", groups)
    )


@pytest.mark.parametrize("name", ROWS)
def test_an_edit_reruns_exactly(name: str, edited: Checkout) -> None:
    row = ROWS[name]
    row.edit(edited)
    pending = set(edited.pending())
    assert pending == row.jobs(edited)
    assert explained(edited) == files_of(pending)


WHY = """
import sys
from kvatlas.grid import config
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import finished_run, staleness
current = Workflow(config.load(sys.argv[1])).current
for path in finished_run.files(current.grid):
    if staleness.explain_rerun(current, path):
        print(path)
"""


def explained(checkout: Checkout) -> set[str]:
    """The files of the run that `kvatlas why` says would be made again, those that stand for a job each."""
    (checkout.root / "why_all.py").write_text(WHY)
    return files_of(f"why {path}" for path in checkout.run("why_all", checkout.configfile).stdout.split())


def files_of(jobs: Iterable[str]) -> set[str]:
    """The files in a list of jobs that stand for one: the first of its outputs; prefills are working files."""
    named = {job.partition(" ")[2] for job in jobs if " " in job}
    first = {"reports/toy/README.md", "reports/toy/results.json", "reports/toy/explorer.html"}
    return {path for path in named if "/prefill/" not in path and (path.startswith("results/") or path in first)}


def test_why_agrees_with_a_dry_run_where_a_seal_is_deleted(edited: Checkout) -> None:
    (seal,) = (edited.root / f"results/toy/verified/online_lm/{MODEL}").glob("*.json")
    kept, was = seal.read_bytes(), seal.stat()
    seal.unlink()
    try:
        pending = set(edited.pending())
        assert f"verify {seal.relative_to(edited.root)}" in pending
        assert explained(edited) == files_of(pending)
    finally:
        seal.write_bytes(kept)
        os.utime(seal, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_touching_every_file_reruns_nothing(edited: Checkout) -> None:
    folders = ("src", "config", "workflow", "results", "reports", "resources")
    before = {path: path.stat() for folder in folders for path in (edited.root / folder).rglob("*")}
    for path in before:
        os.utime(path)
    try:
        assert edited.pending() == []
    finally:
        for path, was in before.items():
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_git_checkout_of_another_branch_and_back_reruns_nothing(edited: Checkout) -> None:
    git = git_in(edited.root)
    try:
        git("init", "--quiet")
        git("add", "src", "config", "workflow", "profiles", "Snakefile")
        git("commit", "--quiet", "-m", "one")
        git("checkout", "--quiet", "-b", "other")
        edited.append(f"{POLICIES}/random.py", "\nADDED = 1\n")
        git("commit", "--quiet", "-a", "-m", "two")
        assert set(edited.pending()) == one_method(edited, "random")
        git("checkout", "--quiet", "-")
        assert edited.pending() == []
    finally:
        shutil.rmtree(edited.root / ".git")


@pytest.mark.parametrize("keeps", ["records and not times", "times and not records"])
def test_a_fresh_clone_with_copied_results_reruns_nothing(keeps: str, finished: Checkout, tmp_path: Path) -> None:
    clone = Checkout(tmp_path / "clone")
    shutil.copytree(finished.root, clone.root, copy_function=shutil.copyfile, ignore=shutil.ignore_patterns("results"))
    copy_function = shutil.copyfile if keeps == "records and not times" else shutil.copy2
    for name in ("results", "reports", "resources"):
        shutil.copytree(finished.root / name, clone.root / name, copy_function=copy_function, dirs_exist_ok=True)
    if keeps == "times and not records":
        shutil.rmtree(clone.root / ".snakemake")
    assert clone.pending() == []
    clone.run("kvatlas.cli", "check", "--configfile", clone.configfile)


@pytest.mark.parametrize(
    "arguments",
    [("--cores", "7"), ("--cores", "all"), ("--workflow-profile", "none"), ("--profile", "profiles/other")],
)
def test_other_cores_and_profiles_rerun_nothing(arguments: tuple[str, ...], edited: Checkout) -> None:
    profile = edited.root / "profiles/other/config.yaml"
    profile.parent.mkdir(exist_ok=True)
    profile.write_text("max-checksum-file-size: 50MB\nresources:\n  mem_mb: 900\n  gpu: 4\nset-threads:\n  recall: 2\n")
    assert edited.pending(*arguments) == []


def git_in(folder: Path) -> Callable[..., object]:
    name = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    return lambda *arguments: subprocess.run(["git", *name, *arguments], cwd=folder, check=True)
