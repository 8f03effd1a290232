"""What each `kvatlas` command does, given its parsed arguments; heavy imports happen inside."""

from __future__ import annotations

import json
import os
import shutil
import sys
import webbrowser
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.experiments import run_cell
from kvatlas.files import read_json, write_json, write_text
from kvatlas.grid import config, studies
from kvatlas.grid.cells import EMBED, PREFILL, RECALL
from kvatlas.paths import Paths, code_record
from kvatlas.pipeline import local_resources, plan, prefill_files
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import acceptance, checksums, dependencies, staleness
from kvatlas.tracking.fingerprint import Explanation, combine

_OUT_OF_MEMORY = ("DefaultCPUAllocator", "out of memory", "not enough memory")


def fetch_model(args: Namespace) -> None:
    """Fetch a model into the folder of its provenance file."""
    from kvatlas.lm.sources import fetch_model as fetch

    fetch(args.name, json.loads(args.entry), args.output.parent)


def fetch_text(args: Namespace) -> None:
    """Fetch a text."""
    from kvatlas.lm.sources import fetch_text as fetch

    fetch(args.name, json.loads(args.entry), args.output)


def cell(args: Namespace) -> None:
    """Run one cell: prompts, a prefill, the embeddings of a model, or an arm of a study."""
    spec = json.loads(args.spec)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    if "torch" in sys.modules:
        # A warm start has read these variables already.
        sys.modules["torch"].set_num_threads(args.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Models are local folders by now; without this a tokenizer may still ask the network about its name.
    os.environ["HF_HUB_OFFLINE"] = "1"
    fingerprint = _verify(args, _cell_explanation(spec, args.code))
    inputs = dict(_named_path(text) for text in args.input)
    checksums.require(inputs.values())
    if spec.get("device") in ("auto", "cuda"):
        local_resources.claim_gpu()
    try:
        _run(spec, inputs, args.output, fingerprint)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise KvatlasError(_memory_advice(spec, error)) from error
    checksums.record(args.output)


def _run(spec: dict[str, Any], inputs: dict[str, Path], output: Path, fingerprint: str) -> None:
    kind = spec["kind"]
    if kind == PREFILL:
        prefill_files.build(spec, inputs, output, fingerprint=fingerprint)
        return
    if kind == RECALL:
        inputs["prefill"] = prefill_files.ensure(inputs["prefill"], inputs)
    if kind == EMBED:
        recalled = studies.grid(spec["config"]).of_kind(RECALL)
        spec = spec | {"cells": [cell.output for cell in recalled if cell.model == spec["model"]]}
    run_cell.run(spec, inputs, output, fingerprint=fingerprint)


def _named_path(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not path:
        raise KvatlasError(f"--input: '{text}' is not NAME=PATH")
    # A model is tracked by its provenance file and read as a folder.
    return name, Path(path).parent if path.endswith("/provenance.json") else Path(path)


def _cell_explanation(spec: Mapping[str, Any], code: str | None) -> Explanation:
    problem = dependencies.why_missing(spec["kind"])
    if problem:
        raise KvatlasError(f"cell: {problem}; remove the study from the configuration")
    tracked = dependencies.cell_code(spec)
    untracked = dependencies.cell_code(spec, track_versions=False)
    return untracked if code == combine(untracked) else tracked


def _verify(args: Namespace, explanation: Explanation) -> str:
    """Record what the output's code is made of, and return its fingerprint.

    Raises KvatlasError when it is not the one that the workflow computed: the code was edited in the meantime.
    """
    found = combine(explanation)
    if args.code is not None and args.code != found:
        raise KvatlasError(
            f"{args.output}: the code or its packages changed while the workflow was running, or differ on this "
            "machine; run the same command again"
        )
    record = code_record(args.output)
    if record is not None:
        write_json(record, explanation)
    return found


def _is_out_of_memory(error: BaseException) -> bool:
    named = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return named or any(words in str(error) for words in _OUT_OF_MEMORY)


def _memory_advice(spec: Mapping[str, Any], error: BaseException) -> str:
    keys = ("kind", "study", "model", "arm", "mode", "context", "shard")
    name = " ".join(str(spec[key]) for key in keys if key in spec)
    study = spec.get("study", "*")
    reason = (str(error).splitlines() or ["no memory"])[0]
    return (
        f"cell {name}: out of memory ({reason}); state memory_mb (batches are split to fit), lower "
        f"studies.{study}.seeds_per_shard (prompts in a cell), or set studies.{study}.block (queries per prefill "
        "chunk), then run the same command again"
    )


def verify(args: Namespace) -> None:
    """Check a group of cells, record that and release its prefill."""
    spec = json.loads(args.spec)
    staleness.verify_group(
        Workflow(spec["config"]),
        *(spec["study"], spec["model"], spec["group"]),
        args.output,
        keep_prefill=spec["keep_prefill"],
    )


def aggregate(args: Namespace) -> None:
    """Write the table of a study."""
    from kvatlas.pipeline.tables import write_table

    _verify(args, dependencies.table_code(args.study))
    write_table(json.loads(args.spec), args.study, args.output)


def results(args: Namespace) -> None:
    """Write the data of the report into the folder of the output."""
    from kvatlas.pipeline.results import write_results

    _verify(args, dependencies.results_code())
    write_results(json.loads(args.spec), args.output.parent)


def figure(args: Namespace) -> None:
    """Draw a figure into the report's folder, and write its stamp; pictures that it no longer has are removed.

    `snakemake --report` reads its copies in the folder named as the stamp.
    """
    from kvatlas.analysis.trials import read_parquet
    from kvatlas.reporting import figures

    _verify(args, dependencies.figure_code(args.name))
    folder = args.results.parent / "figures"
    for path in folder.glob(f"{args.name}.*"):
        path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    written = figures.write(args.name, read_json(args.results), read_parquet(args.trials), folder)
    pictures = args.output.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    for path in written:
        shutil.copy(path, pictures)
    write_json(args.output, {"files": [path.as_posix() for path in written]})


def pages(args: Namespace) -> None:
    """Write the pages of the report."""
    from kvatlas.reporting.render import write_pages

    _verify(args, dependencies.pages_code())
    write_pages(args.output.parent)


def highlights(args: Namespace) -> None:
    """Put the highlights of a report between the marks of a README, and keep them in `--output`."""
    from kvatlas.reporting import highlights as made

    _verify(args, dependencies.highlights_code())
    report = args.results.parent
    text = made.text(report, report.as_posix())
    made.insert(args.readme, text)
    write_text(args.output, text)


def publish(args: Namespace) -> None:
    """Check a report, list its files, and publish them unless it is a dry run."""
    from kvatlas.reporting.hub import publishing

    configuration = config.load(args.configfile)
    target = configuration.get("publish", {})
    repo_id = args.repo_id or target.get("repo_id")
    if not repo_id:
        raise KvatlasError("publish: no repository; give --repo-id NAME/REPOSITORY, or set publish.repo_id")
    files = publishing.collect(args.folder or Path(Paths(configuration["run"]).report))
    print(publishing.describe(files), flush=True)
    if args.dry_run:
        print(f"{repo_id}: dry run, nothing was sent")
    else:
        print(publishing.publish(files, repo_id, private=args.private or target.get("private", False)))


def explorer(args: Namespace) -> None:
    """Write the explorer of the report."""
    from kvatlas.reporting.explorer.document import write_explorer

    _verify(args, dependencies.explorer_code())
    write_explorer(args.output.parent)


def report(args: Namespace) -> None:
    """Print where the pages of a run are; with `--open`, show the explorer in a browser."""
    folder = Path(studies.grid(config.load(args.configfile)).paths.report)
    pages = [folder / name for name in ("README.md", "explorer.html")]
    missing = [path for path in pages if not path.is_file()]
    if missing:
        raise KvatlasError(f"{missing[0]}: no such page; build it with snakemake --configfile {args.configfile}")
    for path in pages:
        print(path)
    if args.open and not webbrowser.open(pages[-1].resolve().as_uri()):
        raise KvatlasError(f"{pages[-1]}: no browser was found here; open the file in one yourself")


def docs(args: Namespace) -> None:
    """Write the page on the configuration."""
    from kvatlas.reporting.docs import PAGE, write_configuration

    write_configuration()
    print(f"{PAGE} is what the schema says")


def check(args: Namespace) -> None:
    """Compare every stored cell with what the configuration and code would make now; `--accept` takes code edits."""
    workflow = Workflow(config.load(args.configfile))
    if args.accept:
        accepted = acceptance.accept(workflow)
        print("\n".join([f"accepted: {path}" for path in accepted]))
        print(f"{len(accepted)} cells accepted as made by the current code; now run: snakemake --touch --cores 1")
    count = staleness.check(workflow, workflow.grid.trial_cells())
    print(f"{count} cells are what the current code and configuration make")


def validate(args: Namespace) -> None:
    """Validate a configuration."""
    grid = studies.grid(config.load(args.configfile))
    print(f"{args.configfile}: valid; run '{grid.paths.run}' has {len(grid.trial_cells())} cells with trials")


def show_plan(args: Namespace) -> None:
    """Print how much work a configuration is."""
    print(plan.describe(Workflow(config.load(args.configfile))))


def why(args: Namespace) -> None:
    """Print what would rerun an output, and because of which file or key."""
    workflow = Workflow(config.load(args.configfile))
    found = staleness.why(workflow, args.path)
    lines = [f"{args.path}: would be made again" if found else f"{args.path}: up to date"]
    print("\n".join(lines + [f"  {reason}" for reason in found]))
