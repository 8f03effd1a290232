"""What the commands of the workflow's jobs do, given their parsed arguments; heavy imports happen inside.

A job checks that the code is still the one that the workflow computed its fingerprint from, and records it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, write_json, write_text
from kvatlas.grid import unfold
from kvatlas.grid.cells import Grid
from kvatlas.lm import portable
from kvatlas.paths import DATA_FILES, code_record
from kvatlas.pipeline import cell_jobs, local_resources, verified_groups
from kvatlas.pipeline.workflow import Workflow
from kvatlas.tracking import checksums, dependencies, finished_run
from kvatlas.tracking.fingerprint import Explanation, combine


def fetch_model(args: Namespace) -> None:
    """Fetch a model into the folder of its provenance file."""
    from kvatlas.lm.sources import fetch_model as fetch

    _read_nothing()
    fetch(args.name, json.loads(args.entry), args.output.parent)


def fetch_text(args: Namespace) -> None:
    """Fetch a text."""
    from kvatlas.lm.sources import fetch_text as fetch

    fetch(args.name, json.loads(args.entry), args.output)


def cell(args: Namespace) -> None:
    """Run one cell: prompts, a prefill, the embeddings of a model, or an arm of a study."""
    _read_nothing()
    spec = json.loads(args.spec)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(args.threads)
    if spec.get("portable"):
        portable.enter()
    if "torch" in sys.modules:
        # A fork of the server has read these variables already.
        sys.modules["torch"].set_num_threads(args.threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # Models are local folders by now; without this a tokenizer may still ask the network about its name.
    os.environ["HF_HUB_OFFLINE"] = "1"
    fingerprint = _verify_code(args, _cell_explanation(spec, args.code))
    if spec.get("device") in ("auto", "cuda"):
        local_resources.claim_gpu()
    inputs = dict(_named_path(text) for text in args.input)
    cell_jobs.run(spec, inputs, args.output, fingerprint=fingerprint)


def _read_nothing() -> None:
    """Let no library of this job find an answer on the standard input of whoever started the workflow."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def _named_path(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    if not path:
        raise KvatlasError(f"--input: '{text}' is not NAME=PATH")
    return name, Path(path)


def _cell_explanation(spec: Mapping[str, Any], code: str | None) -> Explanation:
    problem = dependencies.missing_experiment(spec["kind"])
    if problem:
        raise KvatlasError(f"cell: {problem}; remove the study from the configuration")
    tracked = dependencies.cell_code(spec)
    untracked = dependencies.cell_code(spec, track_versions=False)
    return untracked if code == combine(untracked) else tracked


def _verify_code(args: Namespace, explanation: Explanation) -> str:
    """Record what the output's code is made of, and return its fingerprint.

    Raises KvatlasError when it is not the one that the workflow computed: the code was edited in the meantime.
    """
    fingerprint = combine(explanation)
    if args.code is not None and args.code != fingerprint:
        raise KvatlasError(
            f"{args.output}: the code or its packages changed while the workflow was running, or differ on this "
            "machine; run the same command again"
        )
    record = code_record(args.output)
    if record is not None:
        write_json(record, explanation)
    return fingerprint


def verify(args: Namespace) -> None:
    """Check a group of cells, record that and release its prefill."""
    spec = json.loads(args.spec)
    key = (spec["study"], spec["model"], spec["group"])
    current = Workflow(spec["config"]).current
    verified_groups.verify(current, key, args.output, keep_prefill=spec["keep_prefill"])


def aggregate(args: Namespace) -> None:
    """Write the table of a study."""
    from kvatlas.pipeline.tables import write_table

    config = json.loads(args.spec)
    _verify_code(args, dependencies.step_code("aggregate", args.study, config))
    _require_cells(unfold.grid(config))
    write_table(config, args.study, args.output)
    checksums.record(args.output)


def _require_cells(grid: Grid) -> None:
    """Remove cells, records of groups, and embeddings that are not as they were written, and name them."""
    finished_run.require_cells(grid, grid.trial_cells())
    checksums.require([*grid.verified(), *map(grid.paths.embeddings, grid.embedded_models())])


def results(args: Namespace) -> None:
    """Write the data of the report into the folder of the output."""
    from kvatlas.pipeline.results import write_results

    config = json.loads(args.spec)
    _verify_code(args, dependencies.step_code("results", config=config))
    grid = unfold.grid(config)
    _require_cells(grid)
    checksums.require(map(grid.paths.table, config["studies"]))
    write_results(config, args.output.parent)
    checksums.record(*finished_run.report_data(grid))


def _report_config(report: Path) -> Any:
    """The configuration that a report's data were made from.

    Raises KvatlasError where one of these files is not as it was written; it is removed.
    """
    checksums.require(path for path in (*map(report.joinpath, DATA_FILES), *report.glob("*.parquet")) if path.is_file())
    return read_json(report / "config.json")["config"]


def figure(args: Namespace) -> None:
    """Draw a figure into the report's folder, and write its stamp; pictures that it no longer has are removed.

    `snakemake --report` reads its copies in the folder named as the stamp.
    """
    from kvatlas.analysis.trials import read_parquet
    from kvatlas.reporting import figures

    _verify_code(args, dependencies.step_code("figure", args.name, _report_config(args.results.parent)))
    folder = args.results.parent / "figures"
    for path in folder.glob(f"{args.name}.*"):
        path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    written = figures.write(args.name, read_json(args.results), read_parquet(args.trials), folder)
    pictures = args.output.with_suffix("")
    pictures.mkdir(parents=True, exist_ok=True)
    copies = [Path(shutil.copy(path, pictures)) for path in written]
    write_json(args.output, {"files": [path.as_posix() for path in written]})
    checksums.record(*written, *copies, args.output)


def pages(args: Namespace) -> None:
    """Write the pages of the report."""
    from kvatlas.reporting.render import write_pages

    _verify_code(args, dependencies.step_code("pages", config=_report_config(args.output.parent)))
    checksums.record(*write_pages(args.output.parent))


def highlights(args: Namespace) -> None:
    """Put the highlights of a report between the marks of a README, and keep them in `--output`."""
    from kvatlas.reporting import highlights as of_report

    report = args.results.parent
    _verify_code(args, dependencies.step_code("highlights", config=_report_config(report)))
    text = of_report.text(report, report.as_posix())
    of_report.insert(args.readme, text)
    write_text(args.output, text)
    checksums.record(args.output)


def explorer(args: Namespace) -> None:
    """Write the explorer of the report."""
    from kvatlas.reporting.explorer.document import write_explorer

    _verify_code(args, dependencies.step_code("explorer", config=_report_config(args.output.parent)))
    checksums.record(write_explorer(args.output.parent))
