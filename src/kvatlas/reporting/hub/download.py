"""The data of a report from a local folder, or from a dataset repository of the Hugging Face Hub. Writes nothing there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from kvatlas.analysis.agreement import report as reports
from kvatlas.errors import KvatlasError
from kvatlas.lm.hub_answers import read_login
from kvatlas.reporting.hub.failures import COMPARE, hub_errors

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?", re.ASCII)


def read_report(name: str) -> reports.Report:
    """Read a report by its folder, or by its Hub id: NAME/REPOSITORY, with @REVISION for one that is not the newest.

    A folder comes first where both could be meant. Raises KvatlasError, one line, when there is neither.
    """
    if Path(name).is_dir():
        return reports.read(Path(name), name)
    if not _HUB_ID.fullmatch(name):
        raise KvatlasError(f"{name}: no such folder, and not a Hub id (NAME/REPOSITORY)")
    with _downloaded(name) as folder:
        return reports.read(folder, name)


@contextmanager
def _downloaded(name: str) -> Iterator[Path]:
    """Download the data of a report into a folder that is removed when the block ends."""
    from huggingface_hub import snapshot_download

    repo_id, _, revision = name.partition("@")
    with TemporaryDirectory() as folder:
        read_login(COMPARE)
        with hub_errors(COMPARE, repo_id):
            snapshot_download(
                repo_id,
                repo_type="dataset",
                revision=revision or None,
                local_dir=folder,
                allow_patterns=list(reports.DATA),
            )
        yield Path(folder)
