"""What cannot be written or read is one line that names the file and the way out, and leaves the old file as it was."""

from __future__ import annotations

import errno
import math
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from kvatlas import files
from kvatlas.analysis import exports, trials
from kvatlas.cli.main import main
from kvatlas.errors import KvatlasError
from kvatlas.experiments import prefill_tensors
from kvatlas.reporting import style

NOBODY = 65534


def save_prefill(path: Path) -> None:
    batch = {f"reference.{name}": torch.ones(2, 3) for name in ("ids", "log_probs", "hidden")}
    prefill_tensors.save(path, [batch], 3)


STREAM = {"study": "online_lm", "id": "a", "nlls": [1.0]}
WRITERS: dict[str, Callable[[Path], object]] = {
    "text.md": lambda path: files.write_text(path, "new"),
    "value.json": lambda path: files.write_json(path, {"a": 1}),
    "cell.jsonl": lambda path: files.write_jsonl(path, [{"a": 1}]),
    "trials.parquet": lambda path: trials.write_parquet([], path),
    "streams.parquet": lambda path: exports.write(path.parent, {"online_lm": [STREAM]}, {path.name: ["online_lm"]}),
    "prefill.safetensors": save_prefill,
    "picture.png": lambda path: style.save(Figure(), path.with_suffix("")),
    "picture.svg": lambda path: style.save(Figure(), path.with_suffix("")),
}
"""Every way that a run writes a file: name -> the writer, which changes the file."""


@pytest.fixture(params=WRITERS)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Callable[[], object]]:
    """A file with old content, and what writes it anew."""
    path: Path = tmp_path / "folder" / request.param
    path.parent.mkdir()
    path.write_bytes(b"old")
    return path, lambda: WRITERS[request.param](path)


def stands_as_it_was(path: Path) -> bool:
    """Whether the old file is there, and no half of a new one."""
    return path.read_bytes() == b"old" and not list(path.parent.glob("*.part"))


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"ref_nlls": [0.5, math.nan]}, r"ref_nlls\[1\] \(nan\)"),
        ({"a": {"b": [{"c": -math.inf}]}}, r"a\.b\[0\]\.c \(-inf\)"),
        (math.inf, r"the value \(inf\)"),
    ],
)
def test_the_place_of_a_number_that_is_not_finite_is_named(tmp_path: Path, value: Any, place: str) -> None:
    for write, content, line in ((files.write_json, value, ""), (files.write_jsonl, [{}, value], ":2")):
        path = tmp_path / "cell.json"
        with pytest.raises(KvatlasError, match=f"cell.json{line}: {place} is no finite number"):
            write(path, content)
        assert list(tmp_path.iterdir()) == []


def test_other_mistakes_of_a_caller_keep_their_traceback(tmp_path: Path) -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError, match="Circular"):
        files.write_json(tmp_path / "x.json", circle)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_one_line_for_every_kind_of_file(writer: tuple[Path, Callable[[], object]]) -> None:
    path, write = writer
    if path.suffix == ".safetensors":
        pytest.skip("safetensors renames a file of its own to the temporary one")
    path.with_name(f"{path.name}.{os.getpid()}.part").symlink_to("/dev/full")
    with pytest.raises(KvatlasError, match=f"{path.name}: no space left on the disk; free some and run"):
        write()
    assert stands_as_it_was(path)


@contextmanager
def small_files() -> Iterator[None]:
    """A limit on the size of files, as `ulimit -f` sets it; for the block alone, because pytest writes files too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_limit_on_the_size_of_files_is_one_line(writer: tuple[Path, Callable[[], object]]) -> None:
    path, write = writer
    said = rf"{path.stem}\.\w+: larger than a file may be here; raise the limit"
    with pytest.raises(KvatlasError, match=said), small_files():
        write()
    assert stands_as_it_was(path)


@contextmanager
def without_the_right(folder: Path) -> Iterator[None]:
    """Forbid writing into a folder; root, whom no mode binds, becomes nobody for the block."""
    folder.chmod(0o500)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_a_folder_that_may_not_be_written_is_one_line(writer: tuple[Path, Callable[[], object]]) -> None:
    path, write = writer
    said = rf"{path.stem}\.\w+: no right to it; run as the user whose it is"
    with without_the_right(path.parent), pytest.raises(KvatlasError, match=said):
        write()
    assert stands_as_it_was(path)


@pytest.mark.parametrize("read", [files.read_json, files.read_jsonl])
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "deep.json").write_text("[" * 10**6 + "\n")
    (tmp_path / "digits.json").write_text("1" * 5000 + "\n")
    (tmp_path / "bytes.json").write_bytes(b"\xff\n")
    for name in ("folder", "deep.json", "digits.json", "bytes.json", "deep.json/x", "x" * 300):
        with pytest.raises(KvatlasError, match=name.replace(".", r"\.")):
            read(tmp_path / name)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_what_the_system_refuses_anywhere_is_one_line_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    """A lock, a folder for temporary files: whatever is not written through `files`."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/some/where")

    monkeypatch.setattr("kvatlas.grid.config.load", refuse)
    assert main(["validate"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("kvatlas: error: /some/where: ")
    assert printed.count("\n") == 1


def test_half_a_character_is_named_and_not_written(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match=r"x\.json: a text in it has half a character \(U\+D800\)"):
        files.write_json(tmp_path / "x.json", ["\ud800"])
    assert list(tmp_path.iterdir()) == []
