"""From the cells of one study to its table.

Apart from `kvatlas.pipeline.results`, so that a table depends on the analysis of its own study alone. Imports no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.analysis import trials
from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims import judge
from kvatlas.analysis.studies.clusters import METRICS
from kvatlas.files import read_jsonl, write_json
from kvatlas.grid import unfold
from kvatlas.grid.cells import RECALL, Grid
from kvatlas.paths import CLAIMS_FILE

Config = Mapping[str, Any]


def write_table(config: Config, study: str, output: Path) -> None:
    """Aggregate the cells of one study into `output`; `config` is the study's part of the configuration."""
    grid = unfold.grid(config)
    module = importlib.import_module(f"kvatlas.analysis.studies.{study}")
    arms = sorted({cell.arm for cell in grid.trial_cells(study)})
    metrics = getattr(module, "METRICS", tuple(METRICS))
    options = {
        # The first model is the one that the run is about; it is held to more clusters than the others.
        "headline": list(config["models"][:1]),
        "pairs": judge.pairs(claim_files.load(CLAIMS_FILE), study, arms, metrics),
    }
    write_json(output, module.aggregate(load_trials(grid, study), options))


def load_trials(grid: Grid, study: str) -> list[dict[str, Any]]:
    """Read the trials of a study; those of recall cells come with their embedding cosines."""
    cells = grid.trial_cells(study)
    paths = [cell.output for cell in cells]
    if any(cell.kind == RECALL for cell in cells):
        embeddings = [grid.paths.embeddings(model) for model in grid.embedded_models(study)]
        return trials.load(paths, embeddings)
    return [row | {"cell": str(path)} for path in paths for row in read_jsonl(path)[1:]]
