"""The joint figure and the headline findings of a run, put between two marks of the repository's README.

Knows the README's marks and the report's folder; whatever is outside the marks stays as it is.
"""

from __future__ import annotations

from pathlib import Path

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, write_text
from kvatlas.reporting import environment, evidence, figures, summary

BEGIN, END = "<!-- highlights: made by the pipeline -->", "<!-- end of highlights -->"
FIGURE = "f1_studies"


def text(report_dir: Path, link: str) -> str:
    """Return the Markdown between the marks for a run's report; `link` is the folder's path as the README sees it.

    Raises KvatlasError when the report lacks its results.
    """
    results, config = read_json(report_dir / "results.json"), read_json(report_dir / "config.json")
    module = figures.load(FIGURE)
    hero = {"name": FIGURE, "alt": module.alt(results)} if module.available(results) else None
    template = environment.markdown().get_template("highlights.md.j2")
    return template.render(
        title=config["config"]["title"],
        link=link,
        counts=evidence.verdict_counts(results),
        headlines=summary.headlines(results),
        hero=hero,
    )


def insert(readme: Path, highlights: str) -> None:
    """Put the highlights between the marks of `readme`. Raises KvatlasError when it has no marks."""
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise KvatlasError(f"{readme}: has no lines '{BEGIN}' and '{END}'; put them where the highlights belong")
    write_text(readme, f"{before}{BEGIN}\n\n{highlights.strip()}\n\n{END}{after}")
