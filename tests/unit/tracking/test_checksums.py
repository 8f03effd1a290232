"""Files of a run that are not as they were written are found, named and removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.paths import checksum_record
from kvatlas.tracking import checksums

CELL = "results/r/cells/needle/m/full/aware-64-0.jsonl"


@pytest.fixture
def cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path(CELL)
    path.parent.mkdir(parents=True)
    path.write_text("a\nb\n")
    checksums.record(CELL)
    return path


def test_a_file_as_it_was_written_is_intact(cell: Path) -> None:
    assert checksums.is_intact(cell)
    checksums.require([cell])
    assert cell.is_file()


@pytest.mark.parametrize("content", ["a\n", "a\nc\n", ""])
def test_a_changed_file_is_named_and_removed(content: str, cell: Path) -> None:
    cell.write_text(content)
    with pytest.raises(KvatlasError, match=f"{CELL}: corrupt, or edited after it was written; it was removed"):
        checksums.require([cell])
    assert not cell.exists()


def test_files_without_a_record_are_taken_as_they_are(cell: Path) -> None:
    other = Path("results/r/cells/other.jsonl")
    other.write_text("anything")
    checksums.record("resources/models/m/provenance.json")
    checksums.require([other, Path("resources/models/m")])
    assert other.is_file()


def test_a_broken_record_accuses_nobody(cell: Path) -> None:
    kept = checksum_record(CELL)
    assert kept is not None
    kept.write_text("{")
    checksums.require([cell])
    assert cell.is_file()
