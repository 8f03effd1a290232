"""The files of a cell: what is written is read again, and a broken file is named in one line."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file, run_cell
from kvatlas.files import read_json, read_jsonl

SPEC = {"kind": "stand", "study": "needle", "arm": "full"}
TRIALS = [{"id": "a", "hit": True}, {"id": "b", "hit": False}]


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cell.jsonl"
    cell_file.write(path, SPEC, "abc", TRIALS)
    assert cell_file.read(path) == cell_file.CellFile(spec=SPEC, fingerprint="abc", trials=TRIALS)
    assert cell_file.read_header(path) == cell_file.Header(spec=SPEC, fingerprint="abc")
    cell_file.write(path, SPEC, "def", TRIALS, accepted_from="abc")
    assert cell_file.read_header(path).accepted_from == "abc"


@pytest.mark.parametrize("read", [cell_file.read, cell_file.read_header])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such (cell|file); build it with snakemake"),
        ("", "broken cell|first line is not a cell header"),
        ('{"cell": {"ki', "broken cell|truncated"),
        ('{"id": "a"}\n{"id": "b"}\n', "its first line is not a cell header; delete the cell and run"),
        ('{"cell": {"kind": "recall"}}\n{"id": "b"}\n', "its first line is not a cell header"),
    ],
)
def test_a_missing_or_broken_cell_is_named(read: Any, text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "cell.jsonl"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(KvatlasError, match=message) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_cell_without_trials_or_cut_off_in_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cell.jsonl"
    cell_file.write(path, SPEC, "abc", [])
    with pytest.raises(KvatlasError, match=r"cell\.jsonl: holds no trials"):
        cell_file.read(path)
    cell_file.write(path, SPEC, "abc", TRIALS)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(KvatlasError, match=r"cell\.jsonl:3: truncated"):
        cell_file.read(path)


def kind_of(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    module = types.ModuleType("stand")
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, "kvatlas.experiments.stand", module)


def test_a_kind_that_measures_gets_a_cell_file_and_a_sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def measure(spec: dict[str, Any], inputs: dict[str, Path]) -> cell_file.Measured:
        seen.append((spec, inputs))
        return cell_file.Measured(TRIALS, {"load_seconds": 0.12345678, "device": "cpu"})

    kind_of(monkeypatch, measure=measure)
    run_cell.run(SPEC, {"model": tmp_path}, tmp_path / "cell.jsonl", fingerprint="abc")
    assert seen == [(SPEC, {"model": tmp_path})]
    assert read_jsonl(tmp_path / "cell.jsonl") == [{"cell": SPEC, "fingerprint": "abc"}, *TRIALS]
    timing = read_json(tmp_path / "cell.timing.json")
    assert timing["load_seconds"] == 0.123457
    assert timing["device"] == "cpu"
    assert timing["wall_seconds"] >= 0
    assert timing["peak_rss_mib"] > 1


def test_a_kind_that_writes_gets_its_output_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind_of(monkeypatch, write=lambda spec, inputs, output: output.write_text(spec["arm"]))
    run_cell.run(SPEC, {}, tmp_path / "out", fingerprint="abc")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
