"""Fetching a text: verified, UTF-8, with its sidecar, and every failure told in one line."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from kvatlas.lm.sources import fetch_text
from tests.support.fetching import (
    REVISION,
    failure,
    make_wheel,
    serve_wheel,
    sha256,
    text_entry,
)


def test_a_text_by_path_is_copied_with_its_sidecar(tmp_path: Path) -> None:
    content = "Zwölf Boxkämpfer\r\njagen Viktor.\n"
    (tmp_path / "source.txt").write_bytes(content.encode())
    target = tmp_path / "text" / "mine.txt"
    fetch_text("mine", text_entry(source="path", path=str(tmp_path / "source.txt")), target)
    assert target.read_bytes() == content.encode()
    sidecar = json.loads(target.with_suffix(".json").read_text())
    assert sidecar["characters"] == len(content)
    assert sidecar["sha256"] == sha256(content.encode())
    assert sidecar["origin"]["license"] == "mit"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "mine.path: {} is not a file"),
        (b"caf\xe9", "mine.path: {} is not UTF-8 (byte 3)"),
        (b" \n", "mine: the text is empty"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    source = tmp_path / "source.txt"
    if content is not None:
        source.write_bytes(content)
    target = tmp_path / "text" / "mine.txt"
    refusal = failure(lambda: fetch_text("mine", text_entry(source="path", path=str(source)), target))
    assert f"config/texts.yaml: {message.format(source)}" in refusal
    assert not target.exists()
    assert not target.with_suffix(".json").exists()


def test_a_text_out_of_a_wheel_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"One item.\nAnother item.\n"
    wheel = make_wheel(tmp_path, {"tiny_model/data/items.cor": content})
    serve_wheel(monkeypatch, wheel)
    entry = text_entry(source="wheel", package="tiny-model", version="1.0", member="tiny_model/data/items.cor")
    fetch_text("news", entry | {"sha256": sha256(content)}, tmp_path / "news.txt")
    assert (tmp_path / "news.txt").read_bytes() == content
    message = failure(lambda: fetch_text("news", entry | {"sha256": "0" * 64}, tmp_path / "other.txt"))
    assert f"items.cor in tiny-model 1.0 has sha256 {sha256(content)}, expected {'0' * 64}" in message
    assert not (tmp_path / "other.txt").exists()


HUB_TEXT = {
    "source": "hub",
    "id": "o/d",
    "subset": "s",
    "revision": REVISION,
    "split": "test",
    "column": "text",
}


def test_a_text_from_the_hub_is_the_joined_column_of_the_pinned_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def load_dataset(*args: object, **options: object) -> datasets.Dataset:
        asked.append((args, options))
        return datasets.Dataset.from_dict({"text": ["", " = A = \n", "b"]})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    entry = text_entry(**HUB_TEXT, join="\n\n")
    fetch_text("wiki", entry, tmp_path / "wiki.txt")
    assert (tmp_path / "wiki.txt").read_text() == "\n\n = A = \n\n\nb"
    assert asked == [(("o/d", "s"), {"revision": REVISION, "split": "test"})]
    fetch_text("wiki", entry, tmp_path / "wiki.txt")
    assert len(asked) == 1
    message = failure(lambda: fetch_text("wiki", entry | {"column": "body"}, tmp_path / "other.txt"))
    assert "wiki.column: o/d has no column 'body'; it has text" in message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ConnectionError("Couldn't reach 'o/d'"),
            "data set o/d is not on this machine and there is no network",
        ),
        (datasets.exceptions.DatasetNotFoundError("x"), f"the Hub has no data set o/d at {REVISION}"),
        (ValueError("Unknown split 'tset'.\nMore"), "data set o/d: Unknown split 'tset'."),
    ],
)
def test_a_failure_of_the_hub_names_the_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str
) -> None:
    def load_dataset(*args: object, **options: object) -> datasets.Dataset:
        raise error

    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    refusal = failure(lambda: fetch_text("wiki", text_entry(**HUB_TEXT, join=""), tmp_path / "wiki.txt"))
    assert message in refusal
    assert not (tmp_path / "wiki.txt").exists()


def test_a_changed_text_is_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "source.txt").write_text("one")
    entry = text_entry(source="path", path=str(tmp_path / "source.txt"))
    target = tmp_path / "mine.txt"
    fetch_text("mine", entry, target)
    target.write_text("edited by hand")
    fetch_text("mine", entry, target)
    assert target.read_text() == "one"
