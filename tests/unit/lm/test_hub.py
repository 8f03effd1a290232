"""The Hub as a source: the real client on the loopback interface, and one line for each failure."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
import torch
from huggingface_hub import errors as hub_errors

from tests.support.fetching import (
    FACTS,
    REVISION,
    Entry,
    logits,
    refused,
)
from tests.support.hub_server import HubServer


def hub_entry(**changes: Any) -> Entry:
    return FACTS | {"source": "hub", "id": "owner/tiny", "revision": REVISION} | changes


def test_a_hub_model_is_downloaded_once_without_pickles_and_survives_offline(qwen: Path, tmp_path: Path) -> None:
    """The real client against a server on the loopback interface, then the same without any server."""
    served = {path.name: path.read_bytes() for path in qwen.iterdir()}
    served |= {"pytorch_model.bin": b"pickle", "original/model.safetensors": b"copy", "README.md": b"hi"}
    code = (
        "import json, pathlib, sys; from kvatlas.lm.sources import fetch_model; "
        "fetch_model('tiny', json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    environment = os.environ | {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "hf_secret",
    }

    def fetch(target: Path, **variables: str) -> str:
        command = [sys.executable, "-c", code, json.dumps(hub_entry()), str(target)]
        done = subprocess.run(command, env=environment | variables, capture_output=True, text=True, check=False)
        assert "hf_secret" not in done.stdout + done.stderr
        return done.stderr if done.returncode else ""

    with HubServer("owner/tiny", REVISION, served) as server:
        assert fetch(tmp_path / "one", HF_ENDPOINT=server.url, HF_HUB_OFFLINE="0") == ""
        requested = set(server.downloaded)
    assert requested == {path.name for path in qwen.iterdir()}
    assert torch.equal(logits(tmp_path / "one"), logits(qwen))
    assert os.stat(tmp_path / "one" / "model.safetensors").st_nlink == 2  # shares its space with the Hub cache
    assert fetch(tmp_path / "two", HF_HUB_OFFLINE="1") == ""
    shutil.rmtree(tmp_path / "hf")
    assert torch.equal(logits(tmp_path / "two"), logits(qwen))
    error = fetch(tmp_path / "three", HF_HUB_OFFLINE="1").splitlines()[-1]
    assert "model owner/tiny is not on this machine and HF_HUB_OFFLINE is set; go online, or" in error
    assert "`source: path`" in error
    assert not (tmp_path / "three").exists()


def response(status: int) -> httpx2.Response:
    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.invalid"))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (hub_errors.LocalEntryNotFoundError("x\ny"), "is not on this machine and there is no network"),
        (httpx2.ReadError("reset"), "is not on this machine and there is no network (ReadError)"),
        (hub_errors.GatedRepoError("x", response=response(403)), "is gated; accept its terms"),
        (
            hub_errors.RepositoryNotFoundError("x", response=response(404)),
            "tiny.id: the Hub has no model owner/tiny",
        ),
        (
            hub_errors.RevisionNotFoundError("x", response=response(404)),
            "tiny.revision: model owner/tiny has no such",
        ),
        (
            hub_errors.HfHubHTTPError("503 down\nmore", response=response(503)),
            "the Hub failed for model owner/tiny: 503",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), "no space left on the disk"),
    ],
)
def test_a_failure_of_the_hub_names_the_model_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def download(*args: object, **options: object) -> str:
        raise error

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert message in refused(hub_entry(), tmp_path / "tiny")


def test_a_hub_repository_without_safetensors_is_refused(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = tmp_path / "snapshot"
    shutil.copytree(qwen, snapshot)
    (snapshot / "model.safetensors").unlink()
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *args, **options: str(snapshot))
    assert "has no weights (*.safetensors)" in refused(hub_entry(), tmp_path / "tiny")
