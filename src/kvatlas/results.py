"""From cells to the data of the report: a study's table, then results.json, trials.parquet, timings.json, config.json.

Pure functions of the cells (timings and the machine's description aside). Imports no torch.
"""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvatlas import studies
from kvatlas.analysis import claim as claim_files
from kvatlas.analysis import claims, published, trials
from kvatlas.analysis.clusters import METRICS
from kvatlas.cells import RECALL, Cell, Grid
from kvatlas.codebase import CLAIMS_FILE, PUBLISHED_FOLDER
from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, read_jsonl, write_json
from kvatlas.fingerprint import MODEL_PACKAGES, version
from kvatlas.paths import model_file, timing_of

SCHEMA = 1
_PACKAGES = (*MODEL_PACKAGES, "scipy", "sentence-transformers", "kvatlas")
_TIMING_PLACE = ("study", "model", "arm", "method", "budget", "quantizer", "mode", "context", "shard")

Config = Mapping[str, Any]


def write_table(config: Config, study: str, output: Path) -> None:
    """Aggregate the cells of one study into `output`; `config` is the study's part of the configuration."""
    grid = studies.grid(config)
    module = importlib.import_module(f"kvatlas.analysis.{study}")
    arms = sorted({cell.arm for cell in grid.trial_cells(study)})
    metrics = getattr(module, "METRICS", tuple(METRICS))
    options = {
        # The first model is the one that the run is about; it is held to more clusters than the others.
        "headline": list(config["models"][:1]),
        "pairs": claims.pairs(claim_files.load(CLAIMS_FILE), study, arms, metrics),
    }
    write_json(output, module.aggregate(load_trials(grid, study), options))


def load_trials(grid: Grid, study: str) -> list[dict[str, Any]]:
    """Read the trials of a study; those of recall cells come with their embedding cosines."""
    cells = grid.trial_cells(study)
    paths = [cell.output for cell in cells]
    if any(cell.kind == RECALL for cell in cells):
        embeddings = [grid.paths.embeddings(model) for model in grid.embedded_models(study)]
        return trials.load(paths, embeddings)
    return [row for path in paths for row in read_jsonl(path)[1:]]


def write_results(config: Config, folder: Path) -> None:
    """Write results.json, trials.parquet, timings.json and config.json of a run into `folder`."""
    grid = studies.grid(config)
    sections = {study: read_json(grid.paths.table(study)) for study in config["studies"]}
    recalled = {cell.study for cell in grid.of_kind(RECALL)}
    loaded = {study: load_trials(grid, study) for study in config["studies"] if study in recalled}
    results: dict[str, Any] = {"schema": SCHEMA, "run": config["run"], "studies": sections}
    results["claims"] = claims.evaluate(claim_files.load(CLAIMS_FILE), results)
    results["published"] = published.compare(PUBLISHED_FOLDER, results, loaded)
    timings = timing_rows(grid)
    trials.write_parquet([trial for rows in loaded.values() for trial in rows], folder / "trials.parquet")
    write_json(folder / "results.json", results)
    write_json(folder / "timings.json", {"rows": timings})
    write_json(folder / "config.json", describe(config, timings))


def timing_rows(grid: Grid) -> list[dict[str, Any]]:
    """The timing sidecars of the trial cells, each with its place in the grid; cells without one are left out."""
    cells = [cell for cell in grid.trial_cells() if timing_of(cell.output).is_file()]
    return [read_json(timing_of(cell.output)) | _place(cell) for cell in cells]


def _place(cell: Cell) -> dict[str, Any]:
    return {key: cell.spec[key] for key in _TIMING_PLACE if key in cell.spec} | {"group": cell.group}


def describe(config: Config, timings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Where the numbers come from: the configuration, models, packages, machine and RoPE inversion telemetry."""
    names = [*config["models"], config["embedder"]]
    return {
        "run": config["run"],
        "config": dict(config),
        "models": {name: _provenance(name) for name in names},
        "packages": {name: version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "hardware": {"system": platform.system(), "machine": platform.machine(), "cores": os.cpu_count()},
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
    found: dict[str, dict[str, Any]] = {}
    for row in timings:
        for key, value in (row.get("rope_telemetry") or {}).items():
            known = found.setdefault(row["model"], {"model": row["model"]})
            known[key] = max(known.get(key, value), value)
    return [found[model] for model in sorted(found)]
