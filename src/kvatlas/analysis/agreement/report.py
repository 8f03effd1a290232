"""The data of a report folder, read for a comparison. Knows the files of a report; compares nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvatlas.errors import KvatlasError
from kvatlas.files import checksum, read_json
from kvatlas.paths import MEASUREMENTS, STREAMS

ANSWERS = "trials.parquet"
DATA = ("results.json", "config.json", ANSWERS, STREAMS, MEASUREMENTS)
"""The files that a comparison reads; of the last two a report has those that its studies fill."""
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    ANSWERS: (
        *("study", "model", "arm", "mode", "id", "question", "answer", "prompt_tokens"),
        *("hit", "output_ids", "gold_nlls"),
    ),
    STREAMS: ("study", "model", "arm", "id", "protocol", "tokens", "block", "passages", "nlls", "hits"),
    MEASUREMENTS: ("study", "model", "arm", "id", "granularity", "metric", "layer", "head", "value"),
}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """What a report holds.

    Args:
        name: what its reader calls it. digest: sha256 of its results.json. results, config: the files of these names.
        answers, streams, measurements: the rows of its Parquet files.
    """

    name: str
    digest: str
    results: Mapping[str, Any]
    config: Mapping[str, Any]
    answers: Sequence[Row]
    streams: Sequence[Row]
    measurements: Sequence[Row]

    @property
    def run(self) -> str:
        """The run that made the report."""
        return str(self.results.get("run", ""))


def read(folder: Path, name: str) -> Report:
    """Read the report in `folder`. Raises KvatlasError, one line, where a file is missing, broken or of another form."""
    results, config = (_object(folder / file) for file in DATA[:2])
    answers, streams, measurements = (_rows(folder / file) for file in DATA[2:])
    digest = checksum(folder / DATA[0], hashlib.sha256)
    return Report(name, digest, results, config, answers, streams, measurements)


def _object(path: Path) -> Mapping[str, Any]:
    value = read_json(path)
    if not isinstance(value, Mapping):
        raise KvatlasError(f"{path}: not the data of a report; build it again with snakemake")
    return value


def _rows(path: Path) -> list[dict[str, Any]]:
    if path.name != ANSWERS and not path.is_file():
        return []
    try:
        missing = sorted(set(_COLUMNS[path.name]) - set(pq.read_schema(path).names))
        if missing:
            raise KvatlasError(
                f"{path}: lacks the columns {', '.join(missing)}; it is of another version of kvatlas and cannot be compared"
            )
        rows: list[dict[str, Any]] = pq.read_table(path, columns=list(_COLUMNS[path.name])).to_pylist()
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such file; name a folder with the data of a report") from error
    except (pa.ArrowException, OSError) as error:
        words = " ".join(str(error).split())
        raise KvatlasError(f"{path}: not readable as the data of a report ({words}); build it again") from error
    return rows
