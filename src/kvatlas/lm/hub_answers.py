"""What can be wrong with a login and with an answer of the Hub, for everything here that asks it.

Knows the Hub's libraries, no repository and no command: what an error means for a reader is said by who asked.
"""

from __future__ import annotations

from types import TracebackType

from kvatlas import terminal
from kvatlas.errors import KvatlasError

NOT_THE_HUBS = "the answer was not the Hub's; check HF_ENDPOINT, or try again later"
_LIBRARIES = ("huggingface_hub", "httpx2", "datasets")
_MISREAD = (TypeError, AttributeError, LookupError, ValueError, RecursionError)


def read_login(label: str) -> str | None:
    """Return the login that the Hub's libraries will send, or None; nothing that is printed from now on shows it.

    Raises KvatlasError, starting with `label`, for a login that no request can carry.
    """
    from huggingface_hub import get_token

    try:
        token = get_token()
    except UnicodeDecodeError as error:
        raise KvatlasError(f"{label}: the stored login is not text; log in again with `hf auth login`") from error
    if token is None:
        return None
    terminal.hide(token)
    if not token.isascii() or not token.isprintable() or " " in token:
        raise KvatlasError(
            f"{label}: the login holds characters that no token has; copy it into HF_TOKEN again, or run `hf auth login`"
        )
    return token


def root_cause(error: Exception) -> Exception:
    """Return what kept a file from being downloaded, where the library says only that it is not on this machine."""
    from httpx2 import HTTPError
    from huggingface_hub.errors import LocalEntryNotFoundError

    cause = error.__cause__
    if isinstance(error, LocalEntryNotFoundError) and isinstance(cause, Exception):
        return cause if isinstance(cause, HTTPError) or is_misread(cause) else error
    return error


def is_misread(error: Exception) -> bool:
    """Return whether the libraries failed over an answer of another form than the Hub's, or a redirect to nowhere."""
    import httpx2
    from huggingface_hub.errors import FileMetadataError

    redirected = (httpx2.InvalidURL, httpx2.UnsupportedProtocol, httpx2.TooManyRedirects)
    if isinstance(error, (*redirected, httpx2.DecodingError, FileMetadataError)):
        return True
    return isinstance(error, _MISREAD) and _passed_through_libraries(error.__traceback__)


def _passed_through_libraries(trace: TracebackType | None) -> bool:
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES:
            return True
        trace = trace.tb_next
    return False
