"""A run stored under old names is brought to the names of now, and nothing else in it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvatlas.files import read_json, read_jsonl, write_json, write_jsonl
from kvatlas.paths import Paths
from kvatlas.tracking import checksums
from kvatlas.tracking.renamed_files import bring_over, renamed

OLD_CELL = "results/r/cells/needle/m/full/floor-64-0.jsonl"
NEW_CELL = "results/r/cells/needle/m/full/no_context-64-0.jsonl"


@pytest.fixture(autouse=True)
def old_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    header = {"cell": {"mode": "floor", "setting": "fair", "policy": {"mass_bias": True}}, "fingerprint": "1"}
    write_jsonl(OLD_CELL, [header, {"mode": "floor", "setting": "fair", "output": "floor", "hit": False}])
    checksums.record(OLD_CELL)
    write_jsonl("results/r/cells/needle/m/full/aware-64-0.jsonl", [{"cell": {"mode": "aware"}, "fingerprint": "1"}])
    write_json("results/r/checked/needle/m/floor-64-0.json", {"cells": {}})
    write_jsonl(
        "results/r/embeddings/m.jsonl", [{"group": "floor-64-0", "id": "p"}, {"group": "aware-64-0", "id": "p"}]
    )


def test_files_keys_and_modes_get_their_names_of_now_and_texts_stay() -> None:
    changed = bring_over(Paths("r"))
    assert NEW_CELL in changed
    header, trial = read_jsonl(NEW_CELL)
    assert header["cell"] == {"mode": "no_context", "protection": "fair", "policy": {"proportional_attention": True}}
    assert trial == {"mode": "no_context", "protection": "fair", "output": "floor", "hit": False}
    assert [row["group"] for row in read_jsonl("results/r/embeddings/m.jsonl")] == ["no_context-64-0", "aware-64-0"]
    assert read_json("results/r/verified/needle/m/no_context-64-0.json") == {"cells": {}}
    assert checksums.is_intact(NEW_CELL)
    assert not Path(OLD_CELL).exists()
    assert not Path("results/r/checked").exists()


def test_tables_of_old_names_are_made_again_and_others_stay() -> None:
    table = Path("results/r/tables/needle.json")
    write_json(table, {"rows": []})
    bring_over(Paths("r"))
    assert not table.exists()
    write_json(table, {"rows": []})
    bring_over(Paths("r"))
    assert table.exists()


def test_what_has_no_old_name_is_left_as_it_is() -> None:
    other = Path("results/r/cells/needle/m/full/aware-64-0.jsonl")
    before = other.read_bytes()
    assert other.as_posix() not in bring_over(Paths("r"))
    assert other.read_bytes() == before
    assert bring_over(Paths("r")) == []


def test_a_method_gets_its_name_of_now_in_paths_and_in_cells() -> None:
    old, new = (
        f"results/r/cells/needle/m/emeans_pre_rope_{word}-4x/aware-1-0.jsonl" for word in ("mass", "proportional")
    )
    write_jsonl(
        old, [{"arm": "emeans_pre_rope_mass-4x", "method": "emeans_pre_rope_mass", "output": "emeans_pre_rope_mass"}]
    )
    assert new in bring_over(Paths("r"))
    names = {"arm": "emeans_pre_rope_proportional-4x", "method": "emeans_pre_rope_proportional"}
    assert read_jsonl(new) == [names | {"output": "emeans_pre_rope_mass"}]


def test_only_whole_words_are_renamed() -> None:
    value = {"mode": "floors", "text": "floor", "group": "floor-1-0", "least": 1}
    assert renamed(json.loads(json.dumps(value))) == {
        "mode": "floors", "text": "floor", "group": "no_context-1-0", "min_share": 1,
    }  # fmt: skip
