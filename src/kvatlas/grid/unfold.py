"""From a validated configuration to its grid of cells."""

from __future__ import annotations

from kvatlas.grid.cells import Config, Grid
from kvatlas.grid.studies import all_studies
from kvatlas.grid.study import Spec, StudyContext

# Keys of the configuration that change how a run is carried out, but nothing that it reports.
_MACHINERY = ("keep_prefill", "threads", "track_versions", "publish", "highlights")
_TABLE_KEYS = ("run", "models", "embedder", "device", "dtype", "portable", "methods")


def grid(config: Config) -> Grid:
    """Return all cells of a validated configuration."""
    records = all_studies()
    return Grid(
        config,
        (
            cell
            for study, study_config in config["studies"].items()
            for model in study_config.get("models", config["models"])
            for cell in records[study].unfold(StudyContext(config, records[study], model))
        ),
    )


def data_files(config: Config) -> dict[str, list[str]]:
    """Return the parquet files that a run has beside trials.parquet, each with the studies whose trials it holds."""
    records = all_studies()
    files: dict[str, list[str]] = {}
    for study, study_config in config["studies"].items():
        for name in records[study].data_files(study_config):
            files.setdefault(name, []).append(study)
    return files


def results_part(config: Config) -> Spec:
    """Return the configuration without what only says how a run is carried out."""
    return {key: value for key, value in config.items() if key not in _MACHINERY}


def study_pages(config: Config) -> dict[str, str]:
    """Return the pages of a report's studies, each with what the study is called."""
    records = all_studies()
    return {records[study].page: records[study].label for study in config["studies"]}


def study_part(config: Config, *studies: str) -> Spec:
    """Return the part of a configuration that the tables of some studies depend on; it is a configuration itself."""
    kept = {key: config[key] for key in _TABLE_KEYS if key in config}
    return kept | {"studies": {study: config["studies"][study] for study in studies}}
