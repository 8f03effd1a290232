"""Files that people write are read strictly, and a mistake is one line with the file and the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.schemas import reader


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "some.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "not valid YAML: key 'a' is given twice (line 3)"),
        ("x:\n  - {a: 1, a: 2}\n", "not valid YAML: key 'a' is given twice (line 2)"),
        ("x: 1\n? [a, b]\n: 1\n", "not valid YAML: a list cannot be a key (line 2)"),
        ("? {a: b}\n: 1\n", "not valid YAML: a map cannot be a key (line 1)"),
        ("a: {}\n3: x\n", "not valid YAML: key 3 is not a text; put it in quotes (line 2)"),
        ("on: x\n", "not valid YAML: key on is not a text; put it in quotes (line 1)"),
        ("a: 1\nb: [1\n", "not valid YAML: while parsing a flow sequence expected ',' or ']'"),
        ("a: 1\nb: \tx: 2\n", "(line 2)"),
        ("a: !!python/object:os.system x\n", "could not determine a constructor"),
        ("a: *nowhere\n", "found undefined alias 'nowhere' (line 1)"),
        ("a: 1\nb: \x07\n", "character U+0007 is not allowed (line 2)"),
        (b"a: 1\nb: caf\xe9\n", "not valid UTF-8 (line 2); save the file as UTF-8"),
    ],
)
def test_a_broken_file_is_one_line_with_the_file_and_the_line(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(KvatlasError) as caught:
        reader.read(path, way_out="look again")
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_named_with_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match=r"none\.yaml: no such recipe; look again"):
        reader.read(tmp_path / "none.yaml", kind="recipe", way_out="look again")
    with pytest.raises(KvatlasError, match="this is a folder, not a recipe; look again"):
        reader.read(tmp_path, kind="recipe", way_out="look again")


def test_a_map_may_merge_others_and_override_their_keys(tmp_path: Path) -> None:
    text = "a: {b: {c: &c {<<: &base {x: 1, y: 2}, x: 3}}}\nd: {<<: *c, y: 4}\ne: {<<: [*base, *c]}\n"
    values = reader.read(written(tmp_path, text), way_out="look again")
    assert values["a"]["b"]["c"] == {"x": 3, "y": 2}
    assert values["d"] == {"x": 3, "y": 4}
    assert values["e"] == {"x": 1, "y": 2}


def test_a_map_that_is_merged_before_it_is_built_keeps_what_it_overrides() -> None:
    text = "deep: {er: {est: &a {<<: &base {x: 1}, x: 2}}}\nshallow: {<<: *a}\n"
    assert reader.parse(text, "text")["shallow"] == {"x": 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a {x: 1}\nb: {<<: *a, <<: *a}\n", r"key '<<' is given twice \(line 2\)"),
        ("a: {<<: 1}\n", r"'<<' merges another map, or a list of maps \(line 1\)"),
        ("a: &a {<<: *a}\n", "'<<' merges another map"),
    ],
)
def test_a_merge_of_anything_but_other_maps_is_refused(text: str, message: str) -> None:
    with pytest.raises(KvatlasError, match=message):
        reader.parse(text, "text")


def test_a_date_without_quotes_is_the_text_that_it_looks_like() -> None:
    assert reader.parse("a: 2024-02-30\nb: 2024-02-03", "text") == {"a": "2024-02-30", "b": "2024-02-03"}


def test_the_lines_of_a_text_inside_a_file_are_those_of_the_file() -> None:
    with pytest.raises(KvatlasError, match=r"card: not valid YAML: key 'a' is given twice \(line 3\)"):
        reader.parse("a: 1\na: 2\n", "card", first_line=2)
