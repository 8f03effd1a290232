"""From a run's report folder to its pages: README.md (report and dataset card), samples.md, cells.md,
model-card.md.

Pages are a pure function of results.json, timings.json, config.json and the parquet files of the
folder. Every value that a template prints is escaped for Markdown unless it is already Markdown
(`Markup`), so text that a model wrote stays text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup
from pyarrow import parquet

from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW
from kvatlas.analysis.trials import read_parquet
from kvatlas.files import read_json, write_text
from kvatlas.grid.studies import all_studies
from kvatlas.paths import PAGES, figure_names
from kvatlas.reporting import (
    cells,
    environment,
    evidence,
    figures,
    labels,
    provenance,
    reproduction,
    samples,
    sections,
    validity,
)
from kvatlas.reporting.hub import cards
from kvatlas.reporting.study_rows import Record


def write_pages(report_dir: Path | str) -> list[Path]:
    """Write the pages of `report_dir` and return their paths.

    Raises KvatlasError when one of the files they are made of is missing or broken, or when the
    card is not valid.
    """
    folder = Path(report_dir)
    results, timings, config = (read_json(folder / f"{name}.json") for name in ("results", "timings", "config"))
    trials = read_parquet(folder / "trials.parquet")
    counts = {path.name: parquet.read_metadata(path).num_rows for path in sorted(folder.glob("*.parquet"))}
    templates = environment.markdown()
    context = report_context(results, timings, config, counts)
    shown = sections.contexts(results, timings, config.get("config") or {})
    contexts: dict[str, Record] = {
        "README.md": context | {"sections": [render_section(templates, name, shown[name]) for name in shown]},
        "samples.md": {"title": context["title"], "samples": samples.chosen(trials)},
        "cells.md": {"title": context["title"], "arms": cells.arms(results)},
        "model-card.md": {"title": context["title"], "blocks": _blocks(results)},
    }
    texts = {page: templates.get_template(f"{page}.j2").render(contexts[page]) for page in PAGES}
    cards.validate(texts["README.md"], folder, rows=sum(counts.values()))
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in PAGES]


def render_section(templates: Environment, study: str, context: Record) -> Markup:
    """Render the section of one study from what its module collected."""
    return Markup(templates.get_template(f"sections/{all_studies()[study].template_name}.md.j2").render(context))


def report_context(results: Record, timings: Record, config: Record, counts: Mapping[str, int]) -> dict[str, Any]:
    """Collect what README.md shows around the sections: plain values and tables, no Markdown but the front matter."""
    resolved = config.get("config") or {}
    title = str(resolved.get("title") or results["run"])
    models = sorted(config.get("models") or {})
    return {
        "front": Markup(cards.dump(cards.front_matter(title, models, counts))),
        "title": title,
        "run": str(results["run"]),
        "counts": counts,
        "figures": _figures(results),
        "gates": validity.gates(results),
        "noise": validity.noise_floor(results),
        "claims": evidence.claims(results),
        "verdicts": evidence.verdict_counts(results),
        "untested": evidence.untested(results),
        "published": reproduction.published(results),
        "not_reproduced": reproduction.not_reproduced(results),
        "reanalyses": reproduction.reanalyses(results),
        "by_means": reproduction.read_by_means(results),
        "provenance": provenance.pairs(config),
        "limits": _limits(results),
    }


def _figures(results: Record) -> list[dict[str, str]]:
    shown = []
    for name in figure_names():
        module = figures.load(name)
        if module.available(results):
            shown.append({"name": name, "title": module.TITLE, "alt": module.alt(results), "caption": module.CAPTION})
    return shown


def _limits(results: Record) -> dict[str, Any]:
    """Report the number of clusters of each model and mode, and which are only described."""
    counts_of: dict[tuple[str, str], list[int]] = {}
    for name, study in (results.get("studies") or {}).items():
        for row in (study or {}).get("rows") or []:
            if row.get("mode") != "no_context" and labels.known(row.get("n_clusters")):
                # Question modes belong to the needle study; other studies go by their own name.
                words = [
                    *([name.replace("_", " ")] if name != "needle" else []),
                    labels.mode_label(row.get("mode") or ""),
                ]
                key = (labels.model_label(str(row["model"])), ", ".join(filter(None, words)))
                counts_of.setdefault(key, []).append(int(row["n_clusters"]))
    lines = [(model, mode, labels.spread(counts)) for (model, mode), counts in sorted(counts_of.items())]
    small = any(min(counts) < DESCRIPTIVE_BELOW for counts in counts_of.values())
    return {"lines": lines, "descriptive": small, "below": DESCRIPTIVE_BELOW}


def _blocks(results: Record) -> list[dict[str, str]]:
    """Make the model-index block of every model of the run, as YAML."""
    rows = [row for study in (results.get("studies") or {}).values() for row in (study or {}).get("rows") or []]
    blocks = []
    for model in sorted({str(row["model"]) for row in rows if row.get("model")}):
        entry = cards.model_index(results, model)
        if entry:
            blocks.append({"model": model, "yaml": cards.dump(entry, rulers=False)})
    return blocks
