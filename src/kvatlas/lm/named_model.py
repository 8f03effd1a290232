"""A model as people name it on a command line: a name of the catalog, a folder, or a Hub id.

Whatever it is becomes a catalog entry, which is fetched and checked as every other one. Imports no torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm.hub import hub_errors
from kvatlas.lm.model_config import config_facts
from kvatlas.schemas.messages import closest

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*\Z")

Entry = Mapping[str, Any]


def find(model: str, catalog: Mapping[str, Entry]) -> tuple[str, Entry]:
    """Return the name and the catalog entry of `model`, where the catalog is looked at first and folders second.

    Raises KvatlasError when it is none of the three, or when the Hub does not have it.
    """
    if model in catalog:
        return model, catalog[model]
    folder = Path(model).expanduser()
    if folder.is_dir():
        resolved = folder.resolve()
        entry = {"title": resolved.name, "source": "path", "path": str(resolved)}
        return _slug(resolved.name), _BLANK | entry | config_facts(resolved, f"model {model}")
    if _HUB_ID.match(model):
        entry = {"title": model.partition("/")[2], "source": "hub", "id": model, "revision": _newest(model)}
        return _slug(model.partition("/")[2]), _BLANK | entry
    known = ", ".join(sorted(name for name, entry in catalog.items() if entry["role"] == "lm")) or "none"
    raise KvatlasError(
        f"model '{model}': no folder, no Hub id (NAME/REPOSITORY), and no name of the catalog{closest(model, catalog)}; "
        f"known: {known}"
    )


_BLANK: dict[str, Any] = {"role": "lm"}


def _slug(title: str) -> str:
    """Make a catalog name of a title."""
    return re.sub(r"[^a-z0-9._-]+", "-", title.lower()).strip("-._") or "model"


def _newest(model: str) -> str:
    """Return the commit at the head of a Hub repository."""
    from huggingface_hub import HfApi

    with hub_errors(f"model {model}", "its newest revision"):
        return str(HfApi().model_info(model).sha)
