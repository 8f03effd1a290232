"""Reading and validating a run's configuration, with messages that name the key, what is allowed and the closest match.

Knows the shape of a configuration (a JSON schema); what the values mean together is `kvatlas.grid.validation`'s
business. Imports neither torch nor transformers, so that a typing mistake shows in a second.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.grid import validation
from kvatlas.grid.studies import all_studies
from kvatlas.schemas import reader
from kvatlas.schemas.values import check_values

DEFAULT_FILE = "config/config.yaml"

Config = dict[str, Any]


def read(path: Path | str) -> Config:
    """Read one configuration file; a key given twice is refused. Raises KvatlasError that names the file."""
    config = reader.read(path, kind="configuration", way_out="name one of config/ with --configfile")
    if not isinstance(config, dict):
        raise KvatlasError(f"{path}: a configuration is a map of keys; see {DEFAULT_FILE}")
    return config


def load(path: Path | str = DEFAULT_FILE, root: Path | str = ".") -> Config:
    """Read and validate one configuration file; `root` holds `config/models.yaml`. Raises KvatlasError, one line."""
    config = read(path)
    try:
        return validate(config, root)
    except KvatlasError as error:
        raise KvatlasError(f"{path}: {error}") from error


def validate(config: Mapping[str, Any], root: Path | str = ".") -> Config:
    """Return `config` as plain values once schema and meaning are checked; KvatlasError names the first mistake."""
    # Snakemake hands over its own mapping types; plain values make specs and hashes independent of it.
    check_values(config)
    plain: Config = json.loads(json.dumps(config))
    reader.check(plain, schema())
    validation.check(plain, Path(root))
    return plain


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of a configuration: what all runs share, and the keys of each study from its record."""
    shared = reader.load_schema("config")
    studies = shared["properties"]["studies"]["properties"]
    studies |= {name: record.config_schema() for name, record in all_studies().items()}
    return shared
