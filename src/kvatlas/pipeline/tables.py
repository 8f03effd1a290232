"""From the cells of one study to its table.

Apart from `kvatlas.pipeline.results`, so that a table depends on the analysis of its own study alone. Imports no torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvatlas.analysis import trials as trial_files
from kvatlas.analysis.claims import claim_file as claim_files
from kvatlas.analysis.claims import judge
from kvatlas.analysis.studies.clusters import METRICS
from kvatlas.analysis.studies.recall_contrasts import Pair
from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.files import write_json
from kvatlas.grid import unfold
from kvatlas.grid.cells import RECALL, Grid
from kvatlas.grid.studies import all_studies
from kvatlas.paths import CLAIMS_FILE

# In nats per token; the perplexity of 709 is the largest that a number holds.
_LARGEST_LOSS = 100.0

Config = Mapping[str, Any]
Trial = Mapping[str, Any]


def write_table(config: Config, study: str, output: Path) -> None:
    """Aggregate the cells of one study into `output`; `config` is the study's part of the configuration."""
    grid = unfold.grid(config)
    options = {
        # The first model is the one that the run is about; it is held to more clusters than the others.
        "headline": list(config["models"][:1]),
        "pairs": _pairs(grid, study),
    }
    write_json(output, aggregate(study, load_trials(grid, study), options))


def aggregate(study: str, trials: Sequence[Trial], options: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the section of a study: what its analysis makes of its trials.

    Raises KvatlasError where a loss is so large that no number can hold its perplexity.
    """
    try:
        section: dict[str, Any] = _analysis(study).aggregate(trials, options)
    except OverflowError as error:
        cells = sorted({str(trial["cell"]) for trial in trials if _largest_loss(trial) > _LARGEST_LOSS})
        raise KvatlasError(
            f"{', '.join(cells[:3]) or study}: losses too large for a perplexity; is the model whole, and its format apt?"
        ) from error
    return section


def _largest_loss(trial: Trial) -> float:
    """The largest NLL of a trial, in nats; 0 where it has none."""
    lists = [value for name, value in trial.items() if name.endswith("nlls") and isinstance(value, list)]
    return max((nll for values in lists for nll in values), default=0.0)


def load_trials(grid: Grid, study: str, *, embedded: bool = True) -> list[dict[str, Any]]:
    """Read the trials of a study; those of recall cells come with their embedding cosines where they are `embedded`."""
    cells = grid.trial_cells(study)
    paths = [cell.output for cell in cells]
    if any(cell.kind == RECALL for cell in cells):
        embeddings = [grid.paths.embeddings(model) for model in grid.embedded_models(study)]
        return trial_files.load(paths, embeddings if embedded else None)
    return [trial | {"cell": path} for path in paths for trial in cell_file.read(path).trials]


def _pairs(grid: Grid, study: str) -> list[Pair]:
    """The contrasts that claims on a study need."""
    arms = sorted({cell.arm for cell in grid.trial_cells(study)})
    metrics = getattr(_analysis(study), "METRICS", tuple(METRICS))
    return judge.pairs(claim_files.load(CLAIMS_FILE), study, arms, metrics)


def _analysis(study: str) -> Any:
    return importlib.import_module(all_studies()[study].analysis_module)
