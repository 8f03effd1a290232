"""Cells to trials: read the recall cells of a run, join the embedding cosines, write and read `trials.parquet`.

Knows the trial schema; knows no statistics and no model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.files import atomic_path, half_a_character, read_jsonl

SCHEMA: pa.Schema = pa.schema(
    [
        *((name, pa.string()) for name in ("study", "model", "arm", "method", "policy", "budget", "quantizer")),
        *((name, pa.string()) for name in ("mode", "haystack", "family")),
        *((name, pa.int64()) for name in ("context", "instance", "seed", "depth")),
        ("id", pa.string()),
        ("hit", pa.bool_()),
        ("question", pa.string()),
        ("answer", pa.string()),
        ("output", pa.string()),
        ("output_ids", pa.list_(pa.int64())),
        *((name, pa.list_(pa.float64())) for name in ("gold_nlls", "ref_nlls", "self_nlls", "ref_kls")),
        ("ref_top1", pa.list_(pa.bool_())),
        *((name, pa.float64()) for name in ("hidden_cosine", "embed_cosine", "needle_retained", "slots")),
        *((name, pa.int64()) for name in ("prompt_tokens", "full_slots")),
        *((name, pa.int64()) for name in ("resident_bytes", "payload_bytes", "peak_bytes", "full_bf16_bytes")),
        ("tokens_written", pa.int64()),
        ("cell", pa.string()),
    ]
)
"""Columns of trials.parquet: NLLs in nats per token, sizes in bytes per prompt, `slots` kept per layer and KV head."""

EXTRA: pa.Schema = pa.schema(
    [("task", pa.string()), ("schedule", pa.string()), ("question_number", pa.int64()), ("score", pa.float64())]
)
"""Columns that a file has where a trial of it has a score in [0, 1]."""

JOINED = ("embed_cosine", "cell")
OPTIONAL = ("question", "family", "instance")  # of some studies alone
REQUIRED = frozenset(SCHEMA.names) - {*JOINED, *OPTIONAL}
NULLABLE = ("needle_retained", "depth", "hidden_cosine", "embed_cosine")
SPEC_KEYS = ("study", "model", "arm", "mode", "context")

Trial = dict[str, Any]


def load(paths: Iterable[Path | str], embeddings: Path | str | Sequence[Path | str] | None = None) -> list[Trial]:
    """Read recall cells into one list of trials, with `cell` (the file) and `embed_cosine` (None without `embeddings`).

    `embeddings` is one file per model, named after it. Raises KvatlasError that names the cell when it is
    empty, truncated, has no header, lacks a field, holds a trial twice or a trial of another cell, or when
    a trial has no embedding.
    """
    trials: list[Trial] = []
    for path in sorted(Path(p) for p in paths):
        trials.extend(_trials_of(path))
    _refuse_duplicates(trials)
    if embeddings is not None:
        files = [embeddings] if isinstance(embeddings, (str, Path)) else list(embeddings)
        _join_embeddings(trials, [Path(file) for file in files])
    return trials


def write_parquet(trials: Sequence[Mapping[str, Any]], path: Path | str) -> None:
    """Write trials to Parquet with the typed columns of `SCHEMA`, and of `EXTRA` where there are scores, atomically."""
    scored = any("score" in trial for trial in trials)
    schema = pa.unify_schemas([SCHEMA, EXTRA]) if scored else SCHEMA
    columns = {name: [trial.get(name) for trial in trials] for name in schema.names}
    try:
        table = pa.table(columns, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise KvatlasError(
            f"{path}: a trial has a value of the wrong type ({error}); delete its cell and run again"
        ) from error
    except UnicodeEncodeError as error:
        raise KvatlasError(half_a_character(path, error)) from error
    with atomic_path(path) as part:
        pq.write_table(table, part, compression="zstd")


def read_parquet(path: Path | str) -> list[Trial]:
    """Read the trials that `write_parquet` wrote. Raises KvatlasError when the file is missing or is not Parquet."""
    try:
        scored = "score" in pq.read_schema(path).names
        table = pq.read_table(path, schema=pa.unify_schemas([SCHEMA, EXTRA]) if scored else SCHEMA)
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such file; build it with snakemake") from error
    except (pa.ArrowInvalid, OSError) as error:
        raise KvatlasError(
            f"{path}: not a readable Parquet file of trials ({error}); delete it and run again"
        ) from error
    rows: list[Trial] = table.to_pylist()
    return rows


def _trials_of(path: Path) -> list[Trial]:
    cell = cell_file.read(path)
    for line, row in enumerate(cell.trials, start=2):
        _check_trial(row, cell.spec, f"{path}:{line}")
    _check_types(cell.trials, path)
    return [{"embed_cosine": None, **row, "cell": path.as_posix()} for row in cell.trials]


def _check_trial(row: Any, spec: Mapping[str, Any], where: str) -> None:
    missing = sorted(REQUIRED - set(row)) if isinstance(row, dict) else ["all fields"]
    if missing:
        raise KvatlasError(
            f"{where}: a trial lacks {', '.join(missing)}; delete the cell and run the same command again"
        )
    for key in REQUIRED - set(NULLABLE):
        if row[key] is None:
            raise KvatlasError(f"{where}: {key} is null; delete the cell and run the same command again")
    for key in SPEC_KEYS:
        if key in spec and row[key] != spec[key]:
            raise KvatlasError(
                f"{where}: a trial of {key} {row[key]!r} in a cell of {spec[key]!r}; "
                "delete the cell and run the same command again"
            )


def _check_types(rows: Sequence[Trial], path: Path) -> None:
    """Refuse a value that its column cannot hold, before it is counted."""
    for column in SCHEMA:
        try:
            pa.array([row.get(column.name) for row in rows], type=column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise KvatlasError(
                f"{path}: {column.name} of a trial is no {column.type}; delete the cell and run the same command again"
            ) from error


def _refuse_duplicates(trials: Sequence[Trial]) -> None:
    seen: dict[tuple[Any, ...], str] = {}
    for trial in trials:
        key = tuple(trial[name] for name in ("study", "model", "arm", "mode", "id"))
        if key in seen:
            raise KvatlasError(f"{trial['cell']}: trial {trial['id']} is also in {seen[key]}; delete the older cell")
        seen[key] = trial["cell"]


def _join_embeddings(trials: Sequence[Trial], files: Sequence[Path]) -> None:
    cosines = {
        (file.name.removesuffix(".jsonl"), row["study"], row["arm"], row["group"], row["id"]): row["embed_cosine"]
        for file in files
        for row in read_jsonl(file)
    }
    for trial in trials:
        group = Path(trial["cell"]).stem
        key = (trial["model"], trial["study"], trial["arm"], group, trial["id"])
        # Whether the output of a question without its context is embedded is the run's choice.
        if key not in cosines and trial["mode"] != "no_context":
            raise KvatlasError(
                f"{trial['cell']}: trial {trial['id']} has no embedding of model {trial['model']}; "
                "delete the embeddings file and run the same command again"
            )
        trial["embed_cosine"] = cosines.get(key)
