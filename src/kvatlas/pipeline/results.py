"""From tables and cells to the data of the report: results.json, trials.parquet, timings.json, config.json.

Pure functions of the cells (timings and the machine's description aside). Imports no torch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import xxhash

from kvatlas.analysis import exports, trials
from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims import judge, reanalyses
from kvatlas.analysis.published import compare
from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.files import read_json, write_json
from kvatlas.grid import unfold
from kvatlas.grid.cells import RECALL, Cell, Grid
from kvatlas.lm.catalog import load_models
from kvatlas.paths import CLAIMS_FILE, PUBLISHED_FOLDER, model_file, timing_of
from kvatlas.pipeline.tables import load_trials
from kvatlas.tracking.fingerprint import MODEL_PACKAGES, combine, version

SCHEMA = 1
_PACKAGES = (*MODEL_PACKAGES, "scipy", "sentence-transformers", "kvatlas")
_TIMING_IDS = ("study", "model", "arm", "method", "budget", "quantizer", "mode", "context", "shard")

Config = Mapping[str, Any]


def write_results(config: Config, folder: Path) -> None:
    """Write results.json, the parquet files, timings.json and config.json of a run into `folder`."""
    grid = unfold.grid(config)
    sections = {study: read_json(grid.paths.table(study)) for study in config["studies"]}
    recalled = {cell.study for cell in grid.of_kind(RECALL)}
    trials_by_study = {study: load_trials(grid, study) for study in config["studies"]}
    results: dict[str, Any] = {"schema": SCHEMA, "run": config["run"], "studies": sections}
    results["claims"] = judge.evaluate(claim_files.load(CLAIMS_FILE), results)
    results["topics"] = claim_files.topics(CLAIMS_FILE)
    results["reanalyses"] = reanalyses.evaluate(reanalyses.load(CLAIMS_FILE), results["claims"])
    compared = {study: rows for study, rows in trials_by_study.items() if study in recalled}
    results["published"] = compare.compare(PUBLISHED_FOLDER, results, compared, load_models())
    results["cells"] = cell_rows(grid)
    timings = timing_rows(grid)
    answers = [trial for rows in trials_by_study.values() for trial in rows if "output" in trial]
    trials.write_parquet(answers, folder / "trials.parquet")
    exports.write(folder, trials_by_study, unfold.data_files(config))
    write_json(folder / "results.json", results)
    write_json(folder / "timings.json", {"rows": timings})
    write_json(folder / "config.json", describe(config, timings) | {"code": code_of(grid)})


def cell_rows(grid: Grid) -> list[dict[str, Any]]:
    """What every number is made of: the cells, each with its trials and their checksum.

    The header of a cell does not count: it changes with every edit of the code, also where no trial does.
    """
    rows = []
    for cell in grid.trial_cells():
        ids = {"study": cell.study, "model": cell.model, "arm": cell.arm, "path": str(cell.output)}
        trial_lines = cell_file.trial_lines(cell.output)
        digest = xxhash.xxh3_128(b"".join(trial_lines)).hexdigest()
        rows.append(ids | {"trials": len(trial_lines), "checksum": digest})
    return rows


def code_of(grid: Grid) -> dict[str, str]:
    """Return study -> a fingerprint of the code that its cells ran."""
    ran: dict[str, dict[str, str]] = {}
    for cell in grid.trial_cells():
        ran.setdefault(cell.study, {})[str(cell.output)] = cell_file.read_header(cell.output).fingerprint
    return {study: combine(cells) for study, cells in ran.items()}


def timing_rows(grid: Grid) -> list[dict[str, Any]]:
    """The timing sidecars of the trial cells, each with the ids of its cell; cells without one are left out."""
    cells = [cell for cell in grid.trial_cells() if timing_of(cell.output).is_file()]
    return [read_json(timing_of(cell.output)) | _ids(cell) for cell in cells]


def _ids(cell: Cell) -> dict[str, Any]:
    return {key: cell.spec[key] for key in _TIMING_IDS if key in cell.spec} | {"group": cell.group}


def describe(config: Config, timings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the numbers come from: the configuration, models, packages, machine and RoPE inversion telemetry."""
    names = [*config["models"], config["embedder"]]
    return {
        "run": config["run"],
        "config": dict(config),
        "models": {name: _provenance(name) for name in names},
        "packages": {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "hardware": {
            "system": platform.system(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "kernels": sorted({row["kernels"] for row in timings if row.get("kernels")}),
        },
        "rope_telemetry": _telemetry(timings),
    }


def _provenance(name: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = read_json(model_file(name))
    except KvatlasError:
        return {}
    return record


def _telemetry(timings: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The largest error of undoing and redoing RoPE that the cells of each model met."""
    errors: dict[str, dict[str, Any]] = {}
    for row in timings:
        for key, value in (row.get("rope_telemetry") or {}).items():
            known = errors.setdefault(row["model"], {"model": row["model"]})
            known[key] = max(known.get(key, value), value)
    return [errors[model] for model in sorted(errors)]
