"""docs/data.md describes the columns that there are, their types and who fills them, and its snippet prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvatlas.analysis import exports, trials
from tests.support.places import ROOT

PAGE = (ROOT / "docs/data.md").read_text(encoding="utf-8")
SCHEMAS = {
    "trials.parquet": trials.SCHEMA,
    "streams.parquet": exports.STREAM_SCHEMA,
    "measurements.parquet": exports.MEASUREMENT_SCHEMA,
}
TYPES = {"string": "text", "int64": "integer", "double": "number", "bool": "yes or no"}
LISTS = {"int64": "list of integers", "double": "list of numbers", "bool": "list of yes or no"}


def described(file: str) -> dict[str, tuple[str, str]]:
    section = PAGE.split(f"\n## {file}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", section, flags=re.M)
    return {name: (kind, studies) for name, kind, studies in rows}


def named(kind: pa.DataType) -> str:
    return LISTS[str(kind.value_type)] if pa.types.is_list(kind) else TYPES[str(kind)]


@pytest.mark.parametrize("file", SCHEMAS)
def test_every_column_is_described_with_its_type(file: str) -> None:
    expected = {field.name: named(field.type) for field in SCHEMAS[file]}
    assert {name: kind for name, (kind, _) in described(file).items()} == expected


@pytest.mark.parametrize("file", SCHEMAS)
def test_the_studies_that_fill_a_column_are_those_of_the_embedded_report(file: str) -> None:
    table = pq.read_table(ROOT / "reports/embedded" / file)
    studies = table.column("study").to_pylist()
    for name, (_, stated) in described(file).items():
        valid = table.column(name).is_valid().to_pylist()
        filled = {study for study, there in zip(studies, valid, strict=True) if there}
        assert stated == ", ".join(sorted(filled)), name


def test_the_snippet_prints_the_number_that_the_page_and_the_report_print() -> None:
    code, printed = re.findall(r"```(?:python)?\n(.*?)```", PAGE, flags=re.S)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == printed
    recall = printed.split("%")[0]
    assert re.search(
        rf"^\| SnapKV 4x \| .* \| {recall}% \(", (ROOT / "reports/thorough/README.md").read_text(), flags=re.M
    )
