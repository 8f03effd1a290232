"""The atlas: a column and a panel per model, the verdict on most clusters, ranks with their uncertainty."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from kvatlas.analysis import atlas
from kvatlas.analysis.atlas import Entry
from kvatlas.cli import main
from kvatlas.reporting import atlas as page
from tests.support.places import REPORTS, ROOT


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded report as if it were of another model."""
    folder = tmp_path_factory.mktemp("reports") / "other"
    folder.mkdir()
    for name in ("results.json", "config.json"):
        text = (ROOT / "reports/embedded" / name).read_text()
        (folder / name).write_text(text.replace("smollm2-135m", "othermodel"))
    table = pq.read_table(ROOT / "reports/embedded/trials.parquet")
    names = ["othermodel"] * table.num_rows
    column = table.schema.get_field_index("model")
    pq.write_table(table.set_column(column, table.schema.field(column), [names]), folder / "trials.parquet")
    return folder


def test_the_committed_atlas_is_that_of_the_committed_reports(tmp_path: Path) -> None:
    written, *pictures = page.write([atlas.read(folder) for folder in REPORTS], tmp_path)
    assert written.read_bytes() == (ROOT / "reports/README.md").read_bytes(), "run `kvatlas atlas`"
    assert all((ROOT / "reports" / picture.name).is_file() for picture in pictures)


def test_a_new_model_adds_a_column_and_a_panel_and_its_rank(second: Path, tmp_path: Path) -> None:
    (path, *pictures) = page.write([atlas.read(folder) for folder in (*REPORTS, second)], tmp_path)
    text = path.read_text()
    assert "| Claim | Source | othermodel | SmolLM2-135M-Instruct |" in text
    assert "![2 charts on one scale" in text
    assert "| othermodel and SmolLM2-135M-Instruct | " in text
    assert [picture.name for picture in pictures] == ["atlas.png", "atlas.svg"]


def test_the_verdict_that_rests_on_most_clusters_is_shown() -> None:
    entries = [atlas.read(folder) for folder in REPORTS]
    (row,) = [row for row in atlas.claim_rows(entries) if row["id"] == "snapkv-4x-is-close-to-full"]
    assert row["verdicts"]["smollm2-135m"]["report"] == "thorough"
    assert atlas.speaker(entries, "smollm2-135m").name == "thorough"


def entry(name: str, recalls: dict[str, list[int]]) -> Entry:
    trials = [
        {"model": name, "arm": arm, "method": arm, "quantizer": "none", "context": 512, "seed": seed, "hit": bool(hit)}
        for arm, hits in recalls.items()
        for seed, hit in enumerate(hits)
    ]
    rows = [{"model": name, "n_clusters": 10}]
    return Entry(name, {"studies": {"needle": {"rows": rows}}, "claims": []}, {}, trials)


def test_ranks_that_agree_reverse_and_say_how_sure() -> None:
    recalls = {arm: [1] * hits + [0] * (10 - hits) for arm, hits in (("a", 9), ("b", 5), ("c", 1), ("d", 0))}
    backwards = dict(zip(recalls, reversed(recalls.values()), strict=True))
    (same,) = atlas.ranks([entry("m", recalls), entry("n", recalls)])
    assert same["tau"] == pytest.approx(1)
    assert same["arms"] == ["a", "b", "c", "d"]
    assert same["ci"][0] < 1
    (reverse,) = atlas.ranks([entry("m", recalls), entry("n", backwards)])
    assert reverse["tau"] == pytest.approx(-1)
    # By hand: of the pairs ab, ac, bc two agree and one does not.
    small = {"a": [1, 1, 1, 1], "b": [1, 1, 1, 0], "c": [1, 0, 0, 0]}
    turned = {"a": [1, 1, 1, 0], "b": [1, 1, 1, 1], "c": [1, 0, 0, 0]}
    (pair,) = atlas.ranks([entry("m", small), entry("n", turned)])
    assert pair["tau"] == pytest.approx(1 / 3)


def test_arms_of_one_model_alone_and_fewer_than_three_are_no_ranking() -> None:
    assert atlas.ranks([entry("m", {"a": [1], "b": [0], "c": [0]})]) == []
    assert atlas.ranks([entry("m", {"a": [1], "b": [0]}), entry("n", {"a": [1], "b": [0]})]) == []
    assert np.isnan(atlas._tau(np.zeros(3), np.ones(3)))


def test_the_command_writes_the_atlas_and_refuses_what_is_no_report(
    second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["atlas"]) == 2
    assert "no finished report" in capsys.readouterr().err
    shutil.copytree(second, tmp_path / "reports/other")
    assert main.main(["atlas"]) == 0
    assert (tmp_path / "reports/README.md").is_file()
    (tmp_path / "reports/other/results.json").write_text(json.dumps({"run": "x"}))
    assert main.main(["atlas", "reports/other"]) == 2
    assert "not the folder of a report" in capsys.readouterr().err
