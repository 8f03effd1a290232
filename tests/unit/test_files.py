"""A number that is not finite is one line that names file and place, and leaves no file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kvatlas import files
from kvatlas.errors import KvatlasError


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
