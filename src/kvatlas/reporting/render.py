"""From a run's report folder to its pages: README.md (report and dataset card), samples.md, cells.md,
model-card.md.

Pages are a pure function of results.json, timings.json, config.json and the parquet files of the
folder. Every value that a template prints is escaped for Markdown unless it is already Markdown
(`Markup`), so text that a model wrote stays text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Undefined
from markupsafe import Markup
from pyarrow import parquet

from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW
from kvatlas.analysis.trials import read_parquet
from kvatlas.files import read_json, write_text
from kvatlas.reporting import (
    cells,
    escape,
    evidence,
    figures,
    labels,
    provenance,
    reproduction,
    sections,
    tables,
)
from kvatlas.reporting.hub import cards
from kvatlas.reporting.study_rows import Record

SAMPLE_LIMIT = 200  # characters of an output in the side-by-side table
PAGES = ("README.md", "samples.md", "cells.md", "model-card.md")


def environment() -> Environment:
    """Make the template environment: undefined names are errors, and what is not Markup is escaped for
    Markdown.
    """
    templates = Environment(
        loader=PackageLoader("kvatlas.reporting", "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_markdown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["md"] = Markup
    templates.filters["short"] = lambda text: Markup(escape.cell(str(text), SAMPLE_LIMIT))
    templates.filters["fence"] = lambda text: Markup(escape.fence(str(text)))
    templates.filters["html"] = lambda text: Markup(escape.html(str(text), None))
    return templates


def _markdown(value: Any) -> Any:
    """Escape what a template prints; an undefined name passes through so that it raises where it is used."""
    if isinstance(value, Markup | Undefined):
        return value
    return Markup(escape.cell(str(value), None))


def write_pages(report_dir: Path | str) -> list[Path]:
    """Write the pages of `report_dir` and return their paths.

    Raises KvatlasError when one of the files they are made of is missing or broken, or when the
    card is not valid.
    """
    folder = Path(report_dir)
    results, timings, config = (read_json(folder / f"{name}.json") for name in ("results", "timings", "config"))
    trials = read_parquet(folder / "trials.parquet")
    counts = {path.name: parquet.read_metadata(path).num_rows for path in sorted(folder.glob("*.parquet"))}
    templates = environment()
    context = report_context(results, timings, config, counts)
    shown = sections.contexts(results, timings, config.get("config") or {})
    contexts: dict[str, Record] = {
        "README.md": context | {"sections": [render_section(templates, name, shown[name]) for name in shown]},
        "samples.md": {"title": context["title"], "samples": samples(results, trials)},
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
    return Markup(templates.get_template(f"sections/{study}.md.j2").render(context))


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
        "gates": evidence.gates(results),
        "noise": evidence.noise_floor(results),
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
    for name in figures.names():
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


def samples(results: Record, trials: Sequence[Record]) -> list[dict[str, Any]]:
    """Choose prompts to show side by side: per model, mode and context the first seed, at a middle and at
    the first depth.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for trial in trials:
        if trial.get("mode") != "no_context" and trial.get("output") is not None and trial.get("depth") is not None:
            key = (trial["study"], trial["model"], trial["mode"], trial["context"])
            groups.setdefault(key, []).append(trial)
    chosen = []
    first = {key[:3]: min(k[3] for k in groups if k[:3] == key[:3]) for key in groups}
    for key in sorted(groups):
        seed = min(trial["seed"] for trial in groups[key])
        depths = sorted({trial["depth"] for trial in groups[key] if trial["seed"] == seed})
        wanted = [depths[len(depths) // 2], *([depths[0]] if key[3] == first[key[:3]] else [])]
        for depth in dict.fromkeys(wanted):
            same = [t for t in groups[key] if t["seed"] == seed and t["depth"] == depth]
            chosen.append(_sample(key, seed, depth, same))
    return chosen


def _sample(key: tuple[Any, ...], seed: int, depth: float, trials: Sequence[Record]) -> dict[str, Any]:
    study, model, mode, context = key
    full = next((trial for trial in trials if trial["arm"] == "full"), None)
    arms = [
        {
            "method": tables.named(trial)[0],
            "ratio": tables.named(trial)[1],
            "hit": "yes" if trial["hit"] else "no",
            "kept": labels.percent(trial.get("needle_retained")),
            "output": str(trial["output"]),
        }
        for trial in sorted(trials, key=labels.arm_key)
    ]
    return {
        "name": f"{labels.model_label(model)}, {study}, {labels.mode_label(mode)}, {context} tokens",
        "id": str(trials[0].get("id") or ""),
        "seed": seed,
        "depth": f"{depth:g}%",
        "answer": str(trials[0].get("answer") or labels.DASH),
        "full": None if full is None else str(full["output"]),
        "arms": arms,
    }


def _blocks(results: Record) -> list[dict[str, str]]:
    """Make the model-index block of every model of the run, as YAML."""
    rows = [row for study in (results.get("studies") or {}).values() for row in (study or {}).get("rows") or []]
    blocks = []
    for model in sorted({str(row["model"]) for row in rows if row.get("model")}):
        entry = cards.model_index(results, model)
        if entry:
            blocks.append({"model": model, "yaml": cards.dump(entry, rulers=False)})
    return blocks
