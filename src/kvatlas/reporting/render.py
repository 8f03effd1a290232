"""From a run's report folder to its pages: README.md (report and dataset card), a page per study, claims.md,
published.md, samples.md, cells.md, model-card.md.

Pages are a pure function of results.json, timings.json, config.json and the parquet files of the
folder. Every value that a template prints is escaped for Markdown unless it is already Markdown
(`Markup`), so text that a model wrote stays text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    ranking,
    reproduction,
    samples,
    sections,
    summary,
    validity,
)
from kvatlas.reporting.hub import cards
from kvatlas.reporting.sections import task_suite
from kvatlas.reporting.study_rows import Record

QUESTION = (
    "A decoder keeps the keys and values of every token it has read. What does a model forget when this KV cache is shrunk, "
    "by evicting tokens, by merging them into centroids, or by storing them in fewer bits?"
)
NO_ROWS = "This run has no rows of this study."


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
    shown = sections.contexts(results, timings, config.get("config") or {})
    title = {"title": _title(results, config)}
    contexts: dict[str, Record] = {
        "README.md": title | report_context(results, config, counts, tuple(shown)),
        "claims.md": title | claims_context(results),
        "published.md": title
        | {"published": reproduction.published(results), "not_reproduced": reproduction.not_reproduced(results)},
        "samples.md": title | {"samples": samples.chosen(trials)},
        "cells.md": title | {"arms": cells.arms(results), "provenance": provenance.pairs(config)},
        "model-card.md": title | {"blocks": _blocks(results, config)},
    }
    texts = {page: templates.get_template(f"{page}.j2").render(contexts[page]) for page in PAGES}
    for name in (name for name in all_studies() if name in results["studies"]):
        section = render_section(templates, name, shown[name]) if name in shown else Markup(f"{NO_ROWS}\n")
        study = study_context(results, name) | {"section": section}
        texts[all_studies()[name].page] = templates.get_template("study.md.j2").render(title | study)
    cards.validate(texts["README.md"], folder, rows=sum(counts.values()))
    for name, text in texts.items():
        write_text(folder / name, text)
    return [folder / name for name in texts]


def render_section(templates: Environment, study: str, context: Record) -> Markup:
    """Render the section of one study from what its module collected."""
    return Markup(templates.get_template(f"sections/{all_studies()[study].template_name}.md.j2").render(context))


def report_context(
    results: Record, config: Record, counts: Mapping[str, int], studies: Sequence[str]
) -> dict[str, Any]:
    """Collect what README.md shows: plain values and tables, no Markdown but the front matter.

    `studies`: the studies of the run that have a page, in the order of the pages.
    """
    models = sorted(config.get("models") or {})
    return {
        "front": Markup(cards.dump(cards.front_matter(_title(results, config), models, counts))),
        "run": str(results["run"]),
        "question": QUESTION,
        "models": [labels.model_label(model) for model in _models(results)],
        "summary": summary.paragraph(results),
        "headlines": summary.headlines(results),
        "rankings": [each for each in ranking.rankings(results, "needle") if each.mode == ranking.FIRST_MODE],
        "caveats": ranking.caveats(results, "needle"),
        "legend": ranking.legend(),
        "heroes": _figures(results, ""),
        "recommendations": task_suite.recommendations(results),
        "studies": [
            study_context(results, name) | {"tables": sections.load(name).short_tables(results)} for name in studies
        ],
        "counts": counts,
        "gates": validity.gate_counts(results),
        "claims": evidence.decided_claims(results),
        "undecided": evidence.undecided(results),
        "sources": evidence.sources(results),
        "not_run": evidence.not_run(results),
        "verdicts": evidence.verdict_counts(results),
        "published": reproduction.counts(results),
        "provenance": provenance.short(config),
        "limits": _limits(results),
    }


def claims_context(results: Record) -> dict[str, Any]:
    """Collect what claims.md shows: all claims with all that is known of them, and what reanalyses move."""
    return {
        "decided": evidence.claims(results, evidence.DECIDED),
        "undecided": evidence.claims(results, evidence.UNDECIDED),
        "not_run": evidence.claims(results, evidence.NOT_RUN),
        "gates": validity.gates(results),
        "noise": validity.noise_floor(results),
        "verdicts": evidence.verdict_counts(results),
        "untested": evidence.untested(results),
        "reanalyses": reproduction.reanalyses(results),
        "by_means": reproduction.read_by_means(results),
    }


def study_context(results: Record, study: str) -> dict[str, Any]:
    """Collect what stands around a study's tables: its names, its question and its figures."""
    record = all_studies()[study]
    return {
        "label": record.label,
        "page": record.page,
        "question": record.question,
        "figures": _figures(results, study),
    }


def _title(results: Record, config: Record) -> str:
    return str((config.get("config") or {}).get("title") or results["run"])


def _figures(results: Record, study: str) -> list[dict[str, str]]:
    """List the figures of a study, or of all studies together, that the results hold data for."""
    shown = []
    for name in figure_names():
        module = figures.load(name)
        if study == module.STUDY and module.available(results):
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


def _models(results: Record) -> list[str]:
    """List the models that have rows in any study."""
    rows = [row for study in (results.get("studies") or {}).values() for row in (study or {}).get("rows") or []]
    return sorted({str(row["model"]) for row in rows if row.get("model")})


def _blocks(results: Record, config: Record) -> list[dict[str, str]]:
    """Make the model-index block of every model of the run, as YAML."""
    blocks = []
    for model in _models(results):
        entry = cards.model_index(results, model, config)
        if entry:
            blocks.append({"model": model, "yaml": cards.dump(entry, rulers=False)})
    return blocks
