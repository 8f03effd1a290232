"""What `kvatlas try` shows: the arms by recall after so many rounds, in the terminal and as a page.

A round is one haystack draw with all arms on it. Knows a section of results.json; it must not know how rounds are run.
"""

from __future__ import annotations

import math
from pathlib import Path

from kvatlas.analysis.statistics.intervals import DESCRIPTIVE_BELOW, clusters_to_resolve
from kvatlas.compression.methods import FULL
from kvatlas.files import write_text
from kvatlas.reporting import environment, labels, ranking, tables
from kvatlas.reporting.study_rows import Record, arms_of, rows_of
from kvatlas.reporting.tables import Row, Table, build

STUDY, MODE = "needle", "aware"
PAGE = "README.md"


def table(results: Record, model: str, baseline: str) -> Table:
    """Build the arms by recall, with paired differences to the full cache and to the arm `baseline`."""
    columns = (
        *("Method", "KV (MiB)", "Recall (95% interval)", "Against full (95% interval)"),
        *("Against sink + recent (95% interval)", "Reading", "Haystacks to tell from full"),
    )
    versus_full = ranking.differences(results, STUDY, model, MODE)
    versus_baseline = {
        str(row["arm"]): row
        for row in rows_of(results, STUDY, "contrasts", model=model, mode=MODE)
        if (row["versus"], row["metric"]) == (baseline, "recall")
    }
    rows = []
    for arm in sorted(arms_of(results, STUDY, model, MODE), key=ranking.by_recall):
        name = str(arm["arm"])
        failed = tables.muted(arm) and arm["n_clusters"] >= DESCRIPTIVE_BELOW
        cells = (
            labels.arm_label(arm),
            labels.fixed(arm.get("resident_bf16_mib"), 2),
            ranking.with_interval(labels.percent(arm["recall"]), labels.interval(arm["recall_ci"], scale=100)),
            ranking.against_full(versus_full.get(name)),
            ranking.against_full(versus_baseline.get(name)),
            ranking.FAILED if failed else ranking.reading(versus_full.get(name)),
            _needed(versus_full.get(name)),
        )
        rows.append(Row(cells, failed))
    return build(columns, rows, words=(0, 5))


def _needed(contrast: Record | None) -> str:
    """Spell how many haystacks would tell the arm from the full cache, if the difference stayed as it is."""
    if contrast is None or not labels.known(contrast.get("se")):
        return labels.DASH
    return labels.clusters_needed(
        clusters_to_resolve(contrast["diff"], contrast["se"] * math.sqrt(contrast["n_clusters"]))
    )


def summary(results: Record, model: str, title: str) -> str:
    """Say in a line what was asked, how often, and whether the task is one that the model can do."""
    (full,) = [row for row in arms_of(results, STUDY, model, MODE) if row["arm"] == FULL]
    rounds, lengths = full["n_clusters"], ", ".join(map(str, full["contexts"]))
    found = f"the full cache finds {labels.percent(full['recall'])} of the needles"
    line = f"{title}: {full['n']} prompts of {lengths} tokens in {rounds} haystack{'s' if rounds > 1 else ''}; {found}."
    if rounds < DESCRIPTIVE_BELOW:
        return f"{line} Under {DESCRIPTIVE_BELOW} haystacks these numbers describe, and decide nothing."
    return line if full["gate_passed"] else f"{line} It does not master this task: arms are shown, not compared."


def write_page(results: Record, model: str, title: str, baseline: str, folder: Path) -> Path:
    """Write the page of a look into `folder`."""
    text = (
        environment.markdown()
        .get_template("quick-look.md.j2")
        .render(
            title=title,
            summary=summary(results, model, title),
            table=table(results, model, baseline),
            legend=ranking.legend(),
            caveats=ranking.caveats(results, STUDY),
        )
    )
    write_text(folder / PAGE, text)
    return folder / PAGE
