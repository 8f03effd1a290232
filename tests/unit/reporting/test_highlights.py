"""Highlights: what a run puts between the marks of the README."""

from __future__ import annotations

import re

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.reporting import highlights
from kvatlas.reporting.highlights import BEGIN, END
from tests.support.places import REPORTS, ROOT


def test_only_what_is_between_the_marks_is_replaced(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    highlights.insert(readme, "new\n")
    highlights.insert(readme, "new\n")
    assert readme.read_text() == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"


@pytest.mark.parametrize("text", ["nothing", BEGIN, f"{END} {BEGIN}"])
def test_a_readme_without_marks_is_refused_and_left_alone(tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    with pytest.raises(KvatlasError, match="has no lines"):
        highlights.insert(readme, "new")
    assert readme.read_text() == text


def test_the_highlights_in_the_readme_are_those_of_the_report():
    _, _, rest = (ROOT / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    shown, _, _ = rest.partition(END)
    named = [report for report in REPORTS if f"reports/{report.name}/README.md" in shown]
    assert [highlights.text(report, f"reports/{report.name}").strip() for report in named] == [shown.strip()]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.name)
def test_highlights_show_verdicts_and_figures_that_exist(report):
    text = highlights.text(report, f"reports/{report.name}")
    assert f"](reports/{report.name}/claims.md)" in text
    assert re.search(r"^- \*\*(Supported|Contradicted):\*\* ", text, flags=re.M)
    for line in text.splitlines():
        if line.startswith("!["):
            assert (ROOT / line.rpartition("(")[2].rstrip(")").replace("\\", "")).is_file()
