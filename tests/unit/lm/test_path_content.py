"""An edit in place of a `path` model or text is seen, whatever its time says, and a file is read once until it changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvatlas import files
from kvatlas.lm import path_content
from kvatlas.tracking import dependencies
from kvatlas.tracking.fingerprint import combine
from tests.support.tiny_models import make_model_dir


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(tmp_path: Path) -> dict[str, str]:
    return {"source": "path", "path": str(make_model_dir(tmp_path / "model"))}


def edit(path: Path) -> None:
    """Change one byte, and put the file's time back."""
    before, raw = path.stat(), bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"])
def test_one_byte_with_its_time_kept_is_another_model(model, name):
    before = path_content.digest(model), combine(dependencies.fetch_code("model", model))
    assert (path_content.digest(model), combine(dependencies.fetch_code("model", model))) == before
    edit(Path(model["path"]) / name)
    assert path_content.digest(model) != before[0]
    assert combine(dependencies.fetch_code("model", model)) != before[1]


def test_a_file_that_comes_goes_or_is_renamed_counts(model):
    folder = Path(model["path"])
    digests = [path_content.digest(model)]
    (folder / "extra.json").write_text("{}")
    digests.append(path_content.digest(model))
    (folder / "extra.json").rename(folder / "other.json")
    digests.append(path_content.digest(model))
    assert len(set(digests)) == 3
    (folder / "other.json").unlink()
    assert path_content.digest(model) == digests[0]


def test_a_text_counts_by_its_bytes(tmp_path):
    text = tmp_path / "text.txt"
    entry = {"source": "path", "path": str(text)}
    assert path_content.digest(entry) == path_content.ABSENT
    text.write_text("Once upon a time")
    before = path_content.digest(entry)
    edit(text)
    assert path_content.digest(entry) != before != path_content.ABSENT


def test_the_reason_names_the_folder(model):
    (reason,) = [part for part in dependencies.fetch_code("model", model) if part.startswith("content of ")]
    assert reason == f"content of {model['path']}"


def test_files_are_read_once_until_they_change(model, monkeypatch):
    first = path_content.digest(model)
    read: list[Path] = []

    def counted(path: Path) -> str:
        read.append(path)
        return files.checksum(path)

    monkeypatch.setattr(path_content, "checksum", counted)
    assert path_content.digest(model) == first
    assert read == []
    edit(Path(model["path"]) / "config.json")
    path_content.digest(model)
    assert [path.name for path in read] == ["config.json"]


@pytest.mark.parametrize("broken", ["{", "[]", '{"x": 1}'])
def test_a_broken_memory_is_no_obstacle(model, broken):
    first = path_content.digest(model)
    path_content.MEMORY.write_text(broken)
    assert path_content.digest(model) == first


def test_a_source_that_is_pinned_needs_no_content():
    parts = dependencies.fetch_code("model", {"source": "hub", "id": "a/b", "revision": "c"})
    assert not any(part.startswith("content of ") for part in parts)
