"""The many errors of the Hub as one line each: what happened, and the way out. Makes no request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import is_disk_full
from kvatlas.lm.hub_answers import NOT_THE_HUBS, is_misread, root_cause

PUBLISH, COMPARE = "publish", "compare"
_UNAUTHORIZED, _FORBIDDEN, _CONFLICTS, _SERVER_ERRORS = 401, 403, (409, 412), 500
_BAD_CARD = "Invalid metadata"
"""How the library's error begins where the Hub refuses a card."""


@contextmanager
def hub_errors(command: str, repo_id: str) -> Iterator[None]:
    """Turn the Hub's errors in the block into a KvatlasError of one line that names the command and the way out.

    Args:
        command: PUBLISH, which writes to the repository, or COMPARE, which reads it.
    """
    try:
        yield
    except KvatlasError:
        raise
    except Exception as error:
        message = _explain(root_cause(error), command, repo_id)
        if message is None:
            raise
        raise KvatlasError(message) from error


def _explain(error: Exception, command: str, repo_id: str) -> str | None:
    """The whole line for an error; None where it is no fault of the Hub, the network or the disk."""
    from huggingface_hub import errors

    if isinstance(error, errors.OfflineModeIsEnabled):
        return f"{command}: HF_HUB_OFFLINE is set; unset it and run the same command again"
    if isinstance(error, errors.HFValidationError):
        return f"{command}: {_one_line(error)} Write NAME/REPOSITORY."
    if isinstance(error, errors.HfHubHTTPError):
        said: str | None = _refusal(error) if command == PUBLISH else _failed_read(error)
    else:
        said = _sending(error) if command == PUBLISH else None
    if said is None and is_disk_full(error):
        said = "no space left on the disk; free some and run the same command again"
    if said is None and is_misread(error):
        said = NOT_THE_HUBS
    return f"{command}: {repo_id}: {said}" if said else _network(error, command)


def _sending(error: Exception) -> str | None:
    """What goes wrong while a commit is prepared, or None."""
    if isinstance(error, ValueError) and str(error).startswith(_BAD_CARD):
        return f"the Hub refuses the card: {_one_line(error)}"
    if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
        # While a large file is sent ahead of the commit.
        return f"{_one_line(error)}; nothing was committed, run the same command again"
    return None


def _network(error: Exception, command: str) -> str | None:
    import httpx2
    from huggingface_hub.errors import LocalEntryNotFoundError

    if not isinstance(error, httpx2.HTTPError | ConnectionError | TimeoutError | LocalEntryNotFoundError):
        return None
    endpoint, kind = os.environ.get("HF_ENDPOINT", "the Hub"), type(error).__name__
    return f"{command}: {endpoint} cannot be reached ({kind}); check the network and run the same command again"


def _refusal(error: Any) -> str:
    """Why a report could not be sent."""
    status = error.response.status_code
    if status == _UNAUTHORIZED:
        return "the Hub does not accept the token; log in again with `hf auth login`, or set HF_TOKEN to a valid one"
    if status == _FORBIDDEN:
        return "this login may not write there; use a token with write access to it, or another --repo-id"
    if status in _CONFLICTS:
        return "the repository changed meanwhile; run the same command again"
    if status >= _SERVER_ERRORS:
        return f"the Hub failed (status {status}); nothing was committed, run the same command again later"
    return _one_line(error)


def _failed_read(error: Any) -> str:
    """Why a report could not be downloaded."""
    from huggingface_hub import errors

    status = error.response.status_code
    if isinstance(error, errors.RevisionNotFoundError):
        return "the Hub has this data set, but not this revision of it"
    if isinstance(error, errors.RepositoryNotFoundError) and not isinstance(error, errors.GatedRepoError):
        return "the Hub has no such data set, or it is private and this login may not read it"
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return "this login may not read it; log in with `hf auth login`, or accept the terms on its page"
    if status >= _SERVER_ERRORS:
        return f"the Hub failed (status {status}); run the same command again later"
    return _one_line(error)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
