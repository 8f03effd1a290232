"""Any change to a file that people or runs write ends in success or in one line; KVATLAS_EXAMPLES tries more of them."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvatlas.analysis import trials
from kvatlas.analysis.claims import claim_file
from kvatlas.errors import KvatlasError
from kvatlas.experiments import cell_file
from kvatlas.grid import config, unfold
from kvatlas.lm import catalog
from kvatlas.pipeline import tables
from kvatlas.reporting.hub import cards
from kvatlas.terminal import visible
from tests.support import hostile_strings, synthetic
from tests.support.places import CLAIMS_FILE, ROOT

EXAMPLES = int(os.environ.get("KVATLAS_EXAMPLES", "60"))
FUZZ = settings(
    max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
SCALARS = st.none() | st.booleans() | st.integers(-5, 5) | st.integers() | st.floats() | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS | st.sampled_from([*hostile_strings.SHORT, *hostile_strings.HALF_CHARACTERS, "4x", "50%", 10**12]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
EDITS = st.lists(
    st.tuples(st.sampled_from(["replace", "delete", "swap", "rename", "double"]), st.integers(0, 10**6), VALUES),
    min_size=1,
    max_size=3,
)
Edits = list[tuple[str, int, Any]]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def edited(value: Any, edits: Edits) -> Any:
    """A copy of `value` with each edit made at one of its places."""
    value = copy.deepcopy(value)
    for kind, number, new in edits:
        found = places(value)[1:]
        if not found:
            return new
        *above, key = found[number % len(found)]
        parent = value
        for step in above:
            parent = parent[step]
        if kind == "delete":
            del parent[key]
        elif kind == "swap":
            other = found[(number // 7) % len(found)]
            parent[key] = copy.deepcopy(at(value, other))
        elif kind == "rename" and isinstance(parent, dict):
            parent[str(new)] = parent.pop(key)
        elif kind == "double" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        else:
            parent[key] = new
    return value


def at(value: Any, place: tuple[Any, ...]) -> Any:
    """The value at a place."""
    for step in place:
        value = value[step]
    return value


def ends_well(call: Callable[[], object]) -> None:
    """Success, or an error of one visible line."""
    line = ""
    try:
        call()
    except KvatlasError as error:
        line = str(error)
    assert line == visible(line)


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


CONFIGS = [load(f"config/{name}.yaml") for name in ("smoke", "config", "paper")]


@FUZZ
@given(number=st.integers(0, len(CONFIGS) - 1), edits=EDITS)
def test_any_configuration(number: int, edits: Edits) -> None:
    value = edited(CONFIGS[number], edits)
    if isinstance(value, dict):
        ends_well(lambda: unfold.grid(config.validate(value, ROOT)))


@FUZZ
@given(name=st.sampled_from(["models", "texts"]), edits=EDITS)
def test_any_catalog(folder: Path, name: str, edits: Edits) -> None:
    read = catalog.load_models if name == "models" else catalog.load_texts
    write_yaml(folder / "catalog.yaml", edited(load(f"config/{name}.yaml"), edits))
    ends_well(lambda: read(folder / "catalog.yaml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edited")


def write_yaml(path: Path, value: Any) -> None:
    """Write a value as JSON, which is YAML, and quick."""
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8", errors="replace")


CLAIMS = {
    key: value[:4] if isinstance(value, list) else value
    for key, value in load(CLAIMS_FILE.relative_to(ROOT).as_posix()).items()
}


@FUZZ
@given(edits=EDITS)
def test_any_file_of_claims(folder: Path, edits: Edits) -> None:
    write_yaml(folder / "claims.yaml", edited(CLAIMS, edits))
    ends_well(lambda: claim_file.load(folder / "claims.yaml"))


TRIALS = synthetic.recall_trials(arms=synthetic.ARMS[:2], modes=("aware",), contexts=(512,), seeds=2, depths=(10, 50))


@pytest.fixture(scope="module")
def cells(folder: Path) -> list[Path]:
    return synthetic.write_cells(TRIALS, folder)[0]


def read_and_aggregate(paths: list[Path]) -> None:
    """What a run does with its cells."""
    for path in paths:
        cell_file.read_header(path)
    tables.aggregate("needle", trials.load(paths), {})


@FUZZ
@given(number=st.integers(0, 10**6), edits=EDITS)
def test_any_value_in_a_cell(folder: Path, cells: list[Path], number: int, edits: Edits) -> None:
    lines = cells[number % len(cells)].read_text().splitlines()
    index = number // 7 % len(lines)
    lines[index] = json.dumps(edited(json.loads(lines[index]), edits))
    changed = folder / "changed.jsonl"
    changed.write_text("\n".join(lines) + "\n")
    ends_well(lambda: read_and_aggregate([path for path in cells if path != cells[number % len(cells)]] + [changed]))


@FUZZ
@given(number=st.integers(0, 10**6), place=st.integers(0, 10**6), data=st.binary(max_size=4), cut=st.booleans())
def test_any_bytes_in_a_cell(folder: Path, cells: list[Path], number: int, place: int, data: bytes, cut: bool) -> None:
    cell = cells[number % len(cells)]
    raw = cell.read_bytes()
    place %= len(raw)
    changed = folder / "changed.jsonl"
    changed.write_bytes(raw[:place] + data + (b"" if cut else raw[place + 1 :]))
    ends_well(lambda: read_and_aggregate([path for path in cells if path != cell] + [changed]))


FRONT = cards.front_matter("Report", ["smollm2-135m"], {"trials.parquet": 10})


@FUZZ
@given(edits=EDITS)
def test_any_card(folder: Path, edits: Edits) -> None:
    (folder / "trials.parquet").touch()
    front = edited(FRONT, edits)
    if isinstance(front, dict):
        ends_well(lambda: cards.validate(cards.dump(front), folder, rows=10))
