"""The Hugging Face Hub as a source, pinned to one commit; its many errors become one clear line each.

Knows nothing of logins: the Hub's own libraries read them, and nothing here prints them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm.folders import MODEL_FILES
from kvatlas.lm.hub_answers import NOT_THE_HUBS, is_misread, read_login, root_cause

# Second copies of the weights that some repositories carry.
_DUPLICATES = ["consolidated*", "original/*", "onnx/*", "openvino/*"]


def download_snapshot(label: str, entry: Mapping[str, Any]) -> Path:
    """Fetch the model files of `entry` (id, revision) into the Hub cache, resuming there; return the folder.

    Raises KvatlasError, starting with `label`, that names the model and the ways out.
    """
    from huggingface_hub import snapshot_download

    with hub_errors(label, f"model {entry['id']}"):
        return Path(
            snapshot_download(
                entry["id"],
                revision=entry["revision"],
                allow_patterns=list(MODEL_FILES),
                ignore_patterns=_DUPLICATES,
            )
        )


def download_rows(label: str, entry: Mapping[str, Any]) -> list[str]:
    """The rows of one text column of the data set of `entry` (id, subset, revision, split, column).

    Raises KvatlasError, starting with `label`, that names the data set and the ways out.
    """
    import datasets

    with hub_errors(label, f"data set {entry['id']}"):
        try:
            table = datasets.load_dataset(
                entry["id"], entry.get("subset"), revision=entry["revision"], split=entry["split"]
            )
        except datasets.exceptions.DatasetNotFoundError as error:
            raise KvatlasError(f"{label}: the Hub has no data set {entry['id']} at {entry['revision']}") from error
        except ValueError as error:  # an unknown subset or split
            raise KvatlasError(f"{label}: data set {entry['id']}: {_first_line(error)}") from error
    if entry["column"] not in table.column_names:
        names = ", ".join(table.column_names)
        raise KvatlasError(f"{label}.column: {entry['id']} has no column {entry['column']!r}; it has {names}")
    return [str(value) for value in table[entry["column"]]]


@contextmanager
def hub_errors(label: str, what: str) -> Iterator[None]:
    """Turn the Hub's errors in the block into a KvatlasError that starts with `label` and names `what`."""
    read_login(label)
    try:
        yield
    except KvatlasError:
        raise
    except Exception as error:
        message = _explain(root_cause(error), label, what)
        if message is None:
            raise
        raise KvatlasError(message) from error


def _explain(error: Exception, label: str, what: str) -> str | None:
    """The whole line for an error; None where it is no fault of the Hub or the network."""
    import httpx2
    from huggingface_hub import errors

    # The first kind that fits counts: a gated repository is one that is not found, and all three are failures of the Hub.
    refusals: dict[type[Exception], str] = {
        errors.GatedRepoError: f": {what} is gated; accept its terms on its page and log in with `hf auth login`",
        errors.RepositoryNotFoundError: f".id: the Hub has no {what}, or it is private and you are not logged in",
        errors.RevisionNotFoundError: f".revision: {what} has no such commit on the Hub",
        errors.HfHubHTTPError: f": the Hub failed for {what}: {_first_line(error)}; try again later",
    }
    for kind, message in refusals.items():
        if isinstance(error, kind):
            return label + message
    if is_misread(error):
        return f"{label}: {what}: {NOT_THE_HUBS}"
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError | httpx2.HTTPError):
        return f"{label}: {what} is not on this machine and {_offline_reason(error)}"
    return None


def _offline_reason(error: Exception) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    reason = "HF_HUB_OFFLINE is set" if offline else f"there is no network ({type(error).__name__})"
    return f"{reason}; go online, or download it elsewhere and name its place with `source: path` and `path:`"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
