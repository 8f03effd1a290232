"""The committed reports: every verdict follows from the published tables and the claims file alone.

The numbers are computed again from the parquet files without `kvatlas.analysis`: see `tests.support.recomputed`.
"""

from __future__ import annotations

from collections import defaultdict

import pytest
import yaml

from kvatlas.files import read_json
from tests.support.places import ROOT
from tests.support.recomputed import Evidence, adjust, claim_p, verdict, weigh, weigh_level, weigh_value
from tests.support.recomputed_tables import PROTOCOLS, SECTIONS, read

REPORTS = sorted(path.parent for path in (ROOT / "reports").glob("*/results.json"))
CLAIMS = yaml.safe_load((ROOT / "config" / "claims.yaml").read_text(encoding="utf-8"))["claims"]

pytestmark = pytest.mark.parametrize("report", REPORTS, ids=lambda path: path.name)


def parts(claim, arms):
    """The (arm, versus) pairs of a claim; `budgets: any` means every budget at which the run has all of them."""
    listed = {key: claim[key] if isinstance(claim.get(key), list) else [claim.get(key)] for key in ("arms", "versus")}
    patterns = claim.get("pairs") or [
        (arm, arm if versus == "itself" else versus) for arm in listed["arms"] for versus in listed["versus"]
    ]
    anywhere = claim.get("budgets") == "any"
    budgets = sorted({arm.split("-")[1] for arm in arms if "-" in arm}) if anywhere else claim.get("budgets", [""])
    by_budget = [
        [tuple(name and name.replace("{budget}", budget) for name in pair) for pair in patterns] for budget in budgets
    ]
    if anywhere:
        by_budget = [pairs for pairs in by_budget if {name for pair in pairs for name in pair} <= set(arms)]
    return list(dict.fromkeys(pair for pairs in by_budget for pair in pairs))


def weighed(claim, section, arm, versus):
    """One part of a claim: its side and its evidence, or None where the run does not have it."""
    metric, margin, direction = claim["metric"], claim.get("margin", 0), claim.get("direction", "greater")
    if not {arm, versus} - {None, "additive"} <= set(section.arms):
        return None
    if claim["test"] in ("level", "value"):
        value, ci, n_clusters = section.level(arm, metric)
        if claim["test"] == "value":
            return weigh_value(value, claim["target"], margin), Evidence(value, None, None, 0, 0, None)
        return weigh_level(value, ci, direction, margin), Evidence(value, ci, None, 0, 0, n_clusters)
    evidence = section.contrast(arm, versus, metric)
    return evidence and (weigh(evidence, claim["test"], direction, margin), evidence)


def recompute(tables, claims=CLAIMS):
    """(claim, model) -> the claim's verdict, p, adjusted p and parts."""
    models = sorted({row["model"] for rows in tables.values() for row in rows})
    recomputed, families, sections = {}, defaultdict(list), {}
    for claim in claims:
        assert set(claim.get("where", {})) <= {"head_dim"}
        for model in claim.get("models", models):
            key = claim["study"], model, claim.get("mode"), claim.get("where", {}).get("head_dim")
            section = sections[key] = sections.get(key) or SECTIONS[claim["study"]](tables, *key)
            pairs = parts(claim, section.arms)
            weights = [weighed(claim, section, *pair) for pair in pairs]
            entry = recomputed[claim["id"], model] = {"verdict": "not run", "p": None, "p_adjusted": None, "parts": {}}
            if not pairs or None in weights:
                continue
            names = [arm if versus in (None, arm) else f"{arm} vs {versus}" for arm, versus in pairs]
            entry["parts"] = dict(zip(names, weights, strict=True))
            sides = [side for side, _ in weights]
            if section.closed(claim["metric"]):
                entry["verdict"] = "not resolved"
            elif (both := claim_p(sides)) is None:
                entry["verdict"] = verdict(sides, None)
            else:
                entry["p"] = min(both)
                families[claim["study"], model, claim.get("family") == "primary"].append((entry, sides))
    for (*_, primary), members in families.items():
        for (entry, sides), p in zip(members, adjust([entry["p"] for entry, _ in members], primary), strict=True):
            entry |= {"p_adjusted": p, "verdict": verdict(sides, p)}
    return recomputed


def close(published, recomputed, rel=1e-6, width=0.0):
    """Whether two numbers, or two intervals up to a share of their width, are the same; None is only None."""
    if published is None or recomputed is None:
        return published is recomputed
    slack = 1e-9 + (width * (recomputed[1] - recomputed[0]) if width else 0.0)
    return published == pytest.approx(recomputed, rel=rel, abs=slack)


def contradictions(published, recomputed):
    """What published rows say that the recomputed claims do not, one line each."""
    lines = []
    assert sorted((row["id"], row["model"]) for row in published) == sorted(recomputed)
    for row in published:
        entry = recomputed[row["id"], row["model"]]
        # Intervals of streams are bootstrapped, and the p of a margin is made of the interval.
        bootstrapped = row["study"] == "online_lm" or row["metric"] in PROTOCOLS
        rel = 0.05 if bootstrapped else 1e-6
        checks = {
            "verdict": row["verdict"] == entry["verdict"],
            "p": close(row["p"], entry["p"], rel),
            "p_adjusted": close(row["p_adjusted"], entry["p_adjusted"], 0.05 if row["study"] == "task_suite" else rel),
            "parts": [part["name"] for part in row["parts"]] == list(entry["parts"]),
        }
        for part in row["parts"] if checks["parts"] else ():
            side, evidence = entry["parts"][part["name"]]
            checks |= {
                f"effect of {part['name']}": close(part["effect"], evidence.effect),
                f"ci of {part['name']}": close(part["ci"], evidence.ci, width=0.02 * bootstrapped),
                f"p of {part['name']}": close(part["p"], side.p, rel),
                f"n_clusters of {part['name']}": part["n_clusters"] == evidence.n_clusters,
            }
            if part["name"] == row["decided_by"]:
                same = (row["effect"], row["ci"]) == (part["effect"], part["ci"])
                checks["deciding part"] = same and (side.fails or row["verdict"] != "contradicted")
        if row["parts"]:
            sides = [side for side, _ in entry["parts"].values()]
            counts = [evidence.n_clusters for _, evidence in entry["parts"].values() if evidence.n_clusters is not None]
            checks["n_clusters"] = row["n_clusters"] == min(counts, default=None)
            checks["by_means"] = row["by_means"] == all(side.by_means for side in sides)
        lines += [f"{row['id']}, {row['model']}: {name}" for name, same in checks.items() if not same]
    return lines


def test_every_verdict_follows_from_the_published_tables(report):
    assert contradictions(read_json(report / "results.json")["claims"], recompute(read(report))) == []


def no_hits(tables):
    """Every compressed cache answers wrong."""
    for row in tables["trials"]:
        row["hit"] = row["hit"] and row["arm"] == "full"


def all_hits(tables):
    """Every cache answers right."""
    for row in tables["trials"]:
        row["hit"] = row["mode"] != "no_context"


def turned_hits(tables):
    """The full cache answers wrong what it answered right."""
    for row in tables["trials"]:
        row["hit"] = row["hit"] != (row["arm"] == "full" and row["mode"] != "no_context")


def turned_losses(tables):
    """What was harder to predict is easier."""
    for row in tables["streams"]:
        row["nlls"] = [-value for value in row["nlls"]]


def turned_attention(tables):
    """Layers that lost more attention lose less."""
    for row in tables["measurements"]:
        row["value"] = -row["value"]


def larger_errors(tables):
    """Every error is a hundred times as large."""
    for row in tables["measurements"]:
        row["value"] *= 100 if "_error_" in row["metric"] else 1


CHANGES = {
    "needle": (no_hits, all_hits, turned_hits),
    "passkey": (no_hits, all_hits, turned_hits),
    "task_suite": (no_hits, all_hits, turned_hits),
    "online_lm": (turned_losses,),
    "attention_loss": (turned_attention,),
    "quantizer_error": (larger_errors,),
}


def test_other_tables_give_other_verdicts(report):
    published = read_json(report / "results.json")
    for study in published["studies"]:
        claims = [claim for claim in CLAIMS if claim["study"] == study]
        rows = [row for row in published["claims"] if row["study"] == study]
        differing = set()
        for change in CHANGES[study]:
            tables = read(report)
            change(tables)
            lines = contradictions(rows, recompute(tables, claims))
            assert lines, f"{study}: {change.__name__} goes unnoticed"
            differing |= {line for line in lines if line.endswith(": verdict")}
        assert differing, f"{study}: no verdict depends on the tables"
