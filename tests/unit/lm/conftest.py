"""Model folders and catalog entries that the tests of fetching share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import fetching
from tests.support.fetching import Entry
from tests.support.tiny_models import make_model_dir


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    return make_model_dir(tmp_path / "qwen")


@pytest.fixture
def path_entry(tmp_path: Path) -> Entry:
    return fetching.path_entry(tmp_path)


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Entry, list[tuple[str, str]]]:
    return fetching.wheel_entry(tmp_path, monkeypatch)


@pytest.fixture
def downloads(wheel: tuple[Entry, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    return wheel[1]


@pytest.fixture
def wheel_entry(wheel: tuple[Entry, list[tuple[str, str]]]) -> Entry:
    return wheel[0]
