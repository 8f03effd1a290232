"""Reading cells, joining embeddings, and the typed Parquet file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kvatlas.analysis import trials
from kvatlas.errors import KvatlasError
from tests.support import synthetic


def small() -> list[dict[str, Any]]:
    return synthetic.recall_trials(arms=synthetic.ARMS[:4], seeds=2, contexts=(512,), depths=(10, 90), modes=("aware",))


def by_identity(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["arm"], row["mode"], row["id"]))


def test_load_returns_the_trials_of_all_cells_with_their_cell_and_cosine(tmp_path: Path) -> None:
    rows = small()
    cells, embeddings = synthetic.write_cells(rows, tmp_path)
    loaded = trials.load(cells, embeddings)
    expected = [{**row, "cell": (tmp_path / row["cell"]).as_posix()} for row in rows]
    assert by_identity(loaded) == by_identity(expected)


def test_load_does_not_depend_on_the_order_of_the_paths(tmp_path: Path) -> None:
    cells, embeddings = synthetic.write_cells(small(), tmp_path)
    assert trials.load(cells, embeddings[0]) == trials.load(reversed(cells), embeddings[0])


def test_without_embeddings_the_cosine_is_null(tmp_path: Path) -> None:
    cells, _ = synthetic.write_cells(small(), tmp_path)
    assert {row["embed_cosine"] for row in trials.load(cells)} == {None}


def test_a_trial_without_embedding_names_its_cell(tmp_path: Path) -> None:
    cells, (embeddings,) = synthetic.write_cells(small(), tmp_path)
    lines = embeddings.read_text().splitlines(keepends=True)
    embeddings.write_text("".join(line for line in lines if '"arm": "naive_drop-4x"' not in line))
    with pytest.raises(KvatlasError, match=r"naive_drop-4x/aware-512-0\.jsonl: trial .* has no embedding"):
        trials.load(cells, embeddings)


def test_a_floor_trial_may_lack_an_embedding(tmp_path: Path) -> None:
    cells, (embeddings,) = synthetic.write_cells(small(), tmp_path)
    lines = embeddings.read_text().splitlines(keepends=True)
    embeddings.write_text("".join(line for line in lines if '"group": "no_context' not in line))
    cosines = {row["mode"]: row["embed_cosine"] for row in trials.load(cells, embeddings)}
    assert cosines["no_context"] is None
    assert cosines["aware"] is not None


def _edit_first_trial(change: Callable[[dict[str, Any]], None]) -> Callable[[str], str]:
    def edit(text: str) -> str:
        header, first, *rest = text.splitlines()
        row = json.loads(first)
        change(row)
        return "\n".join([header, json.dumps(row), *rest]) + "\n"

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda text: "", "not a cell header"),
        (lambda text: text.split("\n", 1)[1], "not a cell header"),
        (lambda text: text.split("\n", 1)[0] + "\n", "holds no trials"),
        (lambda text: text[:-1], "truncated"),
        (lambda text: text[:-40] + "\n", "not valid JSON"),
        (_edit_first_trial(lambda row: row.pop("ref_nlls")), "lacks ref_nlls"),
        (_edit_first_trial(lambda row: row.update(hit=None)), "hit is null"),
        (_edit_first_trial(lambda row: row.update(arm="h2o-4x")), "a trial of arm 'h2o-4x' in a cell of"),
    ],
)
def test_a_corrupt_cell_is_one_clear_line_that_names_it(
    tmp_path: Path, edit: Callable[[str], str], message: str
) -> None:
    cells, _ = synthetic.write_cells(small(), tmp_path)
    cells[0].write_text(edit(cells[0].read_text()))
    with pytest.raises(KvatlasError, match=message) as caught:
        trials.load(cells)
    assert str(cells[0]) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_same_trial_in_two_cells_is_refused(tmp_path: Path) -> None:
    cells, _ = synthetic.write_cells(small(), tmp_path)
    copy = cells[0].with_name("aware-512-1.jsonl")
    copy.write_text(cells[0].read_text())
    with pytest.raises(KvatlasError, match="is also in"):
        trials.load([*cells, copy])


def test_parquet_gives_back_the_same_trials_with_typed_columns(tmp_path: Path) -> None:
    rows = small()
    path = tmp_path / "trials.parquet"
    trials.write_parquet(rows, path)
    assert trials.read_parquet(path) == [{"family": None, "instance": None} | row for row in rows]
    schema = pq.read_schema(path)
    assert str(schema.field("ref_nlls").type) == "list<element: double>"
    assert str(schema.field("output_ids").type) == "list<element: int64>"
    assert str(schema.field("hit").type) == "bool"
    assert str(schema.field("needle_retained").type) == "double"


def test_parquet_columns_stay_typed_where_every_value_is_null(tmp_path: Path) -> None:
    rows = [{**row, "embed_cosine": None, "needle_retained": None} for row in small()]
    trials.write_parquet(rows, tmp_path / "trials.parquet")
    assert str(pq.read_schema(tmp_path / "trials.parquet").field("embed_cosine").type) == "double"


def test_parquet_of_the_same_trials_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        trials.write_parquet(small(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_wrong_type_is_one_clear_line_and_leaves_no_file(tmp_path: Path) -> None:
    rows = small()
    rows[0]["slots"] = "many"
    with pytest.raises(KvatlasError, match="wrong type"):
        trials.write_parquet(rows, tmp_path / "trials.parquet")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_or_missing_parquet_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match="no such file"):
        trials.read_parquet(tmp_path / "none.parquet")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(KvatlasError, match="not a readable Parquet"):
        trials.read_parquet(tmp_path / "broken.parquet")
