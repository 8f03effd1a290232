"""The atlas: one page over all finished reports, and its figure.

Knows what `kvatlas.analysis.atlas` returns. A new model adds a column and a panel, and nothing else changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from kvatlas.analysis import atlas
from kvatlas.analysis.atlas import Entry
from kvatlas.files import write_text
from kvatlas.grid.studies import all_studies
from kvatlas.reporting import environment, evidence, labels
from kvatlas.reporting.figures import f1_studies
from kvatlas.reporting.figures.layout import axes_grid, legend_below, method_handle
from kvatlas.reporting.ranking import with_interval
from kvatlas.reporting.study_rows import Record
from kvatlas.reporting.style import save, styled
from kvatlas.reporting.tables import Row, Table, build

PAGE, FIGURE = "README.md", "atlas"
WORDS = {"supported": "holds", "contradicted": "does not hold", "not resolved": "open", "not run": "not run"}


def write(entries: Sequence[Entry], folder: Path) -> list[Path]:
    """Write the page and the figure of the atlas into `folder`; return their paths."""
    shown = {model: f1_studies.points(atlas.speaker(entries, model).results, model) for model in atlas.models(entries)}
    shown = {model: points for model, points in shown.items() if points}
    page = environment.markdown().get_template("atlas.md.j2").render(context(entries) | {"panels": len(shown)})
    pictures = save(draw(shown), folder / FIGURE) if shown else []
    write_text(folder / PAGE, page)
    return [folder / PAGE, *pictures]


def context(entries: Sequence[Entry]) -> dict[str, Any]:
    """Collect what the page shows."""
    models = atlas.models(entries)
    claims = atlas.claim_rows(entries)
    return {
        "runs": runs(entries),
        "models": [labels.model_label(model) for model in models],
        "tallies": tallies(claims, models),
        "claims": [
            (record.label, claim_table([row for row in claims if row["study"] == name], models))
            for name, record in all_studies().items()
        ],
        "ranks": rank_table(atlas.ranks(entries)),
        "figure": FIGURE,
    }


def runs(entries: Sequence[Entry]) -> Table:
    """Build the list of runs: weights, grid, code."""
    rows = []
    for entry in entries:
        configured = entry.config.get("config") or {}
        origins = [(entry.config.get("models") or {}).get(model, {}).get("origin") or {} for model in entry.models]
        weights = "; ".join(
            " ".join(
                str(origin[key]) for key in ("upstream", "id", "revision", "package", "version") if origin.get(key)
            )
            or str(origin.get("source", labels.DASH))
            for origin in origins
        )
        cells = entry.results.get("cells") or []
        rows.append(
            Row(
                (
                    f"{entry.name}: {configured.get('title', entry.name)}",
                    ", ".join(labels.model_label(model) for model in entry.models),
                    weights,
                    ", ".join(study.replace("_", " ") for study in configured.get("studies") or {}),
                    f"{sum(cell['trials'] for cell in cells):,}",
                    str((entry.config.get("packages") or {}).get("kvatlas", labels.DASH)),
                ),
                source=entry.name,
            )
        )
    return build(("Run", "Models", "Weights", "Studies", "Trials", "kvatlas"), rows, words=(0, 1, 2, 3, 5))


def tallies(claims: Sequence[Record], models: Sequence[str]) -> Table:
    """Build the count of verdicts by model."""
    rows = []
    for model in models:
        verdicts = [row["verdicts"][model]["verdict"] for row in claims if model in row["verdicts"]]
        counts = [str(verdicts.count(verdict)) for verdict in evidence.VERDICTS[:3]]
        rows.append(Row((labels.model_label(model), *counts)))
    return build(("Model", *(WORDS[verdict] for verdict in evidence.VERDICTS[:3])), rows)


def claim_table(claims: Sequence[Record], models: Sequence[str]) -> Table:
    """Build the matrix of the claims of a study: a column per model with its verdict, effect and clusters."""
    rows = [
        Row(
            (
                str(claim["sentence"]),
                str(claim["source"]),
                *(_verdict(claim["verdicts"].get(model)) for model in models),
            )
        )
        for claim in claims
    ]
    columns = ("Claim", "Source", *(labels.model_label(model) for model in models))
    return build(columns, rows, words=range(len(columns)))


def _verdict(claim: Record | None) -> str:
    if claim is None:
        return labels.DASH
    clusters = f", n = {claim['n_clusters']}" if labels.known(claim.get("n_clusters")) else ""
    return f"{WORDS[claim['verdict']]}: {with_interval(*evidence.effect_text(claim))}{clusters}"


def rank_table(ranks: Sequence[Record]) -> Table:
    """Build the agreement of ranks between every two models."""
    rows = [
        Row(
            (
                " and ".join(labels.model_label(model) for model in pair["models"]),
                str(len(pair["arms"])),
                with_interval(labels.fixed(pair["tau"], 2), labels.interval(pair["ci"], places=2)),
            )
        )
        for pair in ranks
    ]
    return build(("Models", "Arms of both", "Kendall's tau (95% interval)"), rows)


@styled
def draw(shown: dict[str, list[f1_studies.Point]]) -> Figure:
    """Draw a chart per model, all on one scale: hits minus the full cache's against the share of the bf16 cache's bytes."""
    methods = sorted({str(p.row["method"]) for arms in shown.values() for p in arms}, key=labels.method_key)
    figure, grid = axes_grid(len(shown), 1, 3.4 * len(shown) + 0.06 * len(methods) + 0.5)
    charts = [row[0] for row in grid]
    for axes, (model, points) in zip(charts, shown.items(), strict=True):
        f1_studies.draw_chart(axes, points)
        axes.set_title(labels.model_label(model), pad=13)
    limits = [(axes.get_xlim(), axes.get_ylim()) for axes in charts]
    for axes in charts:
        axes.set_xlim(min(x[0] for x, _ in limits), max(x[1] for x, _ in limits))
        axes.set_ylim(min(y[0] for _, y in limits), max(y[1] for _, y in limits))
    legend_below(figure, [method_handle(method, line=False) for method in methods], columns=4)
    return figure
