"""Embedding cells: each output against the full cache's output on the same prompt, equal texts embedded once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file, embed
from kvatlas.files import read_jsonl

VECTORS = {"It is A.": [1.0, 0.0], "It is B.": [0.6, 0.8]}


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """An embedder of known vectors; the texts that it was asked for."""
    calls: list[list[str]] = []

    def encode(texts: Sequence[str], folder: Path, device: str) -> Any:
        calls.append(list(texts))
        return np.array([VECTORS[text] for text in texts])

    monkeypatch.setattr(embed, "encode", encode)
    return calls


def cell(root: Path, arm: str, outputs: Sequence[str]) -> str:
    path = root / arm / "aware-256-0.jsonl"
    trials = [{"id": f"p{number}", "output": output} for number, output in enumerate(outputs)]
    cell_file.write(path, {"kind": "recall", "study": "needle", "arm": arm}, "abc", trials)
    return str(path)


def test_cosines_are_to_the_full_cache_and_equal_texts_are_embedded_once(tmp_path: Path, encoded: Any) -> None:
    cells = [cell(tmp_path, "random-4x", ["It is B.", "It is A."]), cell(tmp_path, "full", ["It is A.", "It is A."])]
    embed.write(
        {"kind": "embed"}, {"embedder": tmp_path} | {path: Path(path) for path in cells}, tmp_path / "out.jsonl"
    )
    assert encoded == [["It is A.", "It is B."]]
    rows = {(row["arm"], row["id"]): row for row in read_jsonl(tmp_path / "out.jsonl")}
    cosines = {key: row["embed_cosine"] for key, row in rows.items()}
    assert cosines == {("random-4x", "p0"): 0.6, ("random-4x", "p1"): 1.0, ("full", "p0"): 1.0, ("full", "p1"): 1.0}
    assert {(row["study"], row["group"]) for row in rows.values()} == {("needle", "aware-256-0")}


def test_an_output_without_a_full_cache_to_compare_with_is_reported(tmp_path: Path, encoded: Any) -> None:
    cells = [cell(tmp_path, "random-4x", ["It is B."])]
    with pytest.raises(KvatlasError, match="no full-cache output of prompt p0"):
        embed.write(
            {"kind": "embed"}, {"embedder": tmp_path} | {path: Path(path) for path in cells}, tmp_path / "out.jsonl"
        )
