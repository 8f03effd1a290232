"""A few figures and the verdicts of a run, put between two marks of the repository's README.

Knows the README's marks and the report's folder; whatever is outside the marks stays as it is.
"""

from __future__ import annotations

from pathlib import Path

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, write_text
from kvatlas.reporting import environment, evidence, figures
from kvatlas.reporting.tables import Row, build

BEGIN, END = "<!-- highlights: made by the pipeline -->", "<!-- end of highlights -->"
FIGURES = ("f1_studies", "f3_forest", "f5_online_lm")


def text(report_dir: Path, link: str) -> str:
    """Return the Markdown between the marks for a run's report; `link` is the folder's path as the README sees it.

    Raises KvatlasError when the report lacks its results.
    """
    results, config = read_json(report_dir / "results.json"), read_json(report_dir / "config.json")
    claims = [claim for claim in evidence.judged(results) if claim["verdict"] in evidence.VERDICTS[:2]]
    decided = build(
        ("Claim", "Verdict", "Effect", "95% interval", "Clusters"),
        [
            Row((str(claim["sentence"]), str(claim["verdict"]), *evidence.effect_text(claim), str(claim["n_clusters"])))
            for claim in claims
            if claim["n_clusters"] is not None
        ],
        words=(0, 1),
    )
    shown = [
        {"name": name, "alt": module.alt(results)}
        for name in FIGURES
        if (module := figures.load(name)).available(results)
    ]
    template = environment.markdown().get_template("highlights.md.j2")
    return template.render(
        title=config["config"]["title"],
        link=link,
        counts=evidence.verdict_counts(results),
        decided=decided,
        figures=shown,
    )


def insert(readme: Path, highlights: str) -> None:
    """Put the highlights between the marks of `readme`. Raises KvatlasError when it has no marks."""
    before, begin, rest = readme.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise KvatlasError(f"{readme}: has no lines '{BEGIN}' and '{END}'; put them where the highlights belong")
    write_text(readme, f"{before}{BEGIN}\n\n{highlights.strip()}\n\n{END}{after}")
