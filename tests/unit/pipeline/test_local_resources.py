"""What a machine lends to local jobs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yte

from kvatlas.pipeline import local_resources
from tests.support.places import ROOT

GIB = 2**30


@pytest.fixture
def limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(local_resources, "_installed_bytes", lambda: 64 * GIB)
    monkeypatch.setattr(local_resources, "_CGROUP_LIMITS", (str(tmp_path / "memory.max"),))
    return tmp_path / "memory.max"


def test_most_of_the_installed_memory_is_lent(limits: Path) -> None:
    assert local_resources.memory_mb() == int(64 * GIB * 0.9) // 2**20


@pytest.mark.parametrize(("text", "gib"), [("max\n", 64), (f"{8 * GIB}\n", 8), (f"{2**62}\n", 64)])
def test_a_container_lends_no_more_than_it_has(text: str, gib: int, limits: Path) -> None:
    limits.write_text(text)
    assert local_resources.memory_mb() == int(gib * GIB * 0.9) // 2**20


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("0,2,5", 3), ("", 1)])
def test_visible_gpus_are_counted(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_resources.gpus() == count


def test_without_a_driver_one_gpu_job_runs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert local_resources.gpus() == 1


def test_the_default_profile_limits_memory_and_gpus_to_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_resources, "memory_mb", lambda: 1234)
    monkeypatch.setattr(local_resources, "gpus", lambda: 3)
    with (ROOT / "profiles/default/config.yaml").open() as stream:
        profile = yte.process_yaml(stream, require_use_yte=True)
    assert profile["resources"] == {"gpu": 3, "mem_mb": 1234}


def test_each_job_claims_a_gpu_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_resources, "_HELD", [])
    claimed = []
    for _ in range(3):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
        claimed.append((local_resources.claim_gpu(tmp_path), os.environ["CUDA_VISIBLE_DEVICES"]))
    assert claimed == [("4", "4"), ("7", "7"), (None, "4,7")]


def test_the_only_gpu_need_not_be_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert local_resources.claim_gpu(tmp_path) is None
    assert not list(tmp_path.iterdir())
