"""Published against reproduced: each number of the source studies beside this run's, or why the run has none.

Knows config/published/*.csv and the sections of results.json; passes no judgement on the published numbers.
A number is compared where the grid matches the study's and the model is the study's or of its family; a row
says which. Recall studies are compared twice: on as many seeds as were published, then on all.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvatlas.analysis.published.tables import TABLES, Table
from kvatlas.analysis.statistics.intervals import exact_interval
from kvatlas.analysis.studies import needle
from kvatlas.analysis.studies.clusters import Trial
from kvatlas.errors import KvatlasError

AS_PUBLISHED = "as published"
ALL = "all"
SAME_MODEL = "same model"
SAME_SHAPE = "same shape"
SAME_FAMILY = "same family"

Row = dict[str, Any]
Catalog = Mapping[str, Mapping[str, Any]]


def compare(
    directory: Path | str,
    results: Mapping[str, Any],
    trials: Mapping[str, Sequence[Trial]] | None = None,
    catalog: Catalog | None = None,
) -> list[Row]:
    """Return a row per published number, related model of the run and subset of seeds.

    Args:
        directory: folder of the CSV files. results: results.json. trials: study -> loaded trials of recall
            studies, which are summed up again over the published grid; a study without trials is compared
            by its section's rows. catalog: name -> entry of the models; tells which are of a family.

    Row: {source, table, label, arm, model, relation ("same model" | "same shape" | "same family"), metric,
    subset, status ("compared" | "not run"), reason, published, reproduced, difference (reproduced minus
    published), ci, inside (published value in our interval; null without one), n}; all in the published unit.
    """
    rows: list[Row] = []
    for table in TABLES:
        lines = _read(Path(directory) / table.file)
        for model, kin in _related(table.model, results, table.study, catalog or {}).items():
            subsets = _subsets(table, model, results, (trials or {}).get(table.study))
            for line in lines:
                rows += _compare_line(table, line, subsets, {"model": model, "relation": kin})
    return rows


def relation(published: str, ours: str, catalog: Catalog) -> str | None:
    """Return how a model of ours is related to a published one, by the `family` and `shape` of their entries."""
    if published == ours:
        return SAME_MODEL
    theirs, entry = catalog.get(published, {}), catalog.get(ours, {})
    if theirs.get("family") is None or theirs["family"] != entry.get("family"):
        return None
    return SAME_SHAPE if theirs["shape"] == entry["shape"] else SAME_FAMILY


def _related(published: str, results: Mapping[str, Any], study: str, catalog: Catalog) -> dict[str, str]:
    """Return the models of a study that are related to a published one, or that one itself where none is."""
    models = sorted({row["model"] for row in results["studies"].get(study, {}).get("rows", ())})
    related = {model: kin for model in models if (kin := relation(published, model, catalog))}
    return related or {published: SAME_MODEL}


def _compare_line(
    table: Table, line: Mapping[str, str], subsets: str | Mapping[str, Mapping[str, Row]], model: Mapping[str, str]
) -> list[Row]:
    arm = table.arm(line)
    label = line.get("method") or line.get("quantizer") or f"{line['precision']} + {line['policy']}"
    ids = {
        "source": table.source,
        "table": table.file.removesuffix(".csv"),
        "label": label,
        "arm": arm,
        **model,
    }
    rows: list[Row] = []
    for column, (name, factor) in table.columns.items():
        published = _number(line, column)
        base: Row = ids | {"metric": column, "published": published}
        if isinstance(subsets, str):
            rows.append(base | _not_run(subsets))
            continue
        for subset, by_arm in subsets.items():
            ours = by_arm.get(arm)
            if ours is None or ours.get(name) is None:
                rows.append(base | _not_run(f"not run (arm {arm})" if ours is None else "not run (not measured)"))
            else:
                rows.append(base | {"subset": subset} | _beside(published, ours, name, factor))
    return rows


def _beside(published: float, ours: Row, name: str, factor: float) -> Row:
    reproduced = ours[name] * factor
    ci = ours.get(f"{name}_ci")
    interval = None if ci is None else [bound * factor for bound in ci]
    return {
        "status": "compared",
        "reason": "",
        "reproduced": reproduced,
        "difference": reproduced - published,
        "ci": interval,
        "inside": None if interval is None else interval[0] <= published <= interval[1],
        "n": ours.get("n"),
    }


def _not_run(reason: str) -> Row:
    blank = dict.fromkeys(("subset", "reproduced", "difference", "ci", "inside", "n"))
    return {"status": "not run", "reason": reason} | blank


def _subsets(
    table: Table, model: str, results: Mapping[str, Any], trials: Sequence[Trial] | None
) -> str | dict[str, dict[str, Row]]:
    """Return subset name -> arm -> our row, or the reason why nothing matches."""
    section = results["studies"].get(table.study)
    if section is None:
        return f"not run (study {table.study})"
    ours = [r for r in section.get("rows", ()) if r["model"] == model and table.mode in (None, r.get("mode"))]
    if not ours:
        return f"not run (model {model}{f', mode {table.mode}' if table.mode else ''})"
    if trials is not None:
        return _from_trials(table, model, trials)
    wrong = [f"{key} {value}" for key, value in table.grid.items() if not _covers(ours[0].get(key), value)]
    return f"not run ({', '.join(wrong)})" if wrong else {ALL: {row["arm"]: row for row in ours}}


def _from_trials(table: Table, model: str, trials: Sequence[Trial]) -> str | dict[str, dict[str, Row]]:
    chosen = [t for t in trials if t["model"] == model and t["mode"] == table.mode]
    for key, singular in (("contexts", "context"), ("depths", "depth")):
        wanted = table.grid.get(key, ())
        missing = [value for value in wanted if value not in {t[singular] for t in chosen}]
        if missing:
            return f"not run ({singular} {', '.join(map(str, missing))})"
        chosen = [t for t in chosen if not wanted or t[singular] in wanted]
    seeds = sorted({t["seed"] for t in chosen})
    subsets = {ALL: _by_arm(chosen)}
    if table.seeds is not None and len(seeds) >= table.seeds:
        first = [t for t in chosen if t["seed"] in seeds[: table.seeds]]
        subsets = {AS_PUBLISHED: _by_arm(first), **subsets}
    return subsets


def _by_arm(trials: Sequence[Trial]) -> dict[str, Row]:
    """Sum trials up again, with the recall at each depth as a field of its own."""
    described = needle.describe(trials)
    rows = {row["arm"]: row for row in described["rows"]}
    for depth in (row for row in described["by_depth"] if row["context"] == "all"):
        rows[depth["arm"]] |= {
            f"recall_d{depth['depth']}": depth["hits"] / depth["n"],
            f"recall_d{depth['depth']}_ci": list(exact_interval(depth["hits"], depth["n"])),
        }
    return rows


def _covers(ours: Any, wanted: Any) -> bool:
    return set(wanted) <= set(ours or ()) if isinstance(wanted, tuple) else bool(ours == wanted)


def _number(line: Mapping[str, str], column: str) -> float:
    if column == "accuracy_pct" and column not in line:
        return 100 * float(line["correct"]) / float(line["total"])
    words = {"pass": 1.0, "fail": 0.0}
    return words[line[column]] if line[column] in words else float(line[column])


def _read(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such file; restore it from the repository") from error
