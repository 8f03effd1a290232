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
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise KvatlasError(
            f"{label}: {what} is gated; accept its terms on its page and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise KvatlasError(f"{label}.id: the Hub has no {what}, or it is private and you are not logged in") from error
    except errors.RevisionNotFoundError as error:
        raise KvatlasError(f"{label}.revision: {what} has no such commit on the Hub") from error
    except errors.HfHubHTTPError as error:
        raise KvatlasError(f"{label}: the Hub failed for {what}: {_first_line(error)}; try again later") from error
    except (errors.LocalEntryNotFoundError, ConnectionError, httpx2.HTTPError) as error:
        raise KvatlasError(f"{label}: {what} is not on this machine and {_offline_reason(error)}") from error


def _offline_reason(error: Exception) -> str:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    reason = "HF_HUB_OFFLINE is set" if offline else f"there is no network ({type(error).__name__})"
    return f"{reason}; go online, or download it elsewhere and name its place with `source: path` and `path:`"


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
