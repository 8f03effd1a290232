"""The passkey section: the recall tables, and each haystack by itself."""

from __future__ import annotations

from kvatlas.analysis.studies import needle, passkey
from tests.support import synthetic

ARMS = (
    synthetic.FULL,
    synthetic.Arm("keydiff", "10%", 2.0, 0.1),
    synthetic.Arm("l2norm", "10%", 1.0, 0.2),
)


def trials() -> list[dict]:
    rows = []
    for haystack, seed in (("noise", 0), ("corpus", 1)):
        part = synthetic.recall_trials(
            study="passkey", arms=[arm for arm in ARMS if arm.budget == "none"], contexts=(512,), modes=("aware",),
            random_state=seed, no_context=haystack == "noise",
        )  # fmt: skip
        for trial in part:
            trial |= {"haystack": haystack, "id": f"passkey-{haystack}-{trial['id']}"}
            rows.append(trial)
            for arm in ARMS[1:] if trial["mode"] != "no_context" else ():
                slots = 51.0
                rows.append(
                    trial
                    | {"arm": f"{arm.method}-10pct", "method": arm.method, "policy": arm.method, "budget": "10%"}
                    | {"slots": slots, "hit": trial["hit"] and not (haystack == "corpus" and arm.method == "keydiff")}
                    | {"cell": trial["cell"].replace("/full/", f"/{arm.method}-10pct/")}
                )
    return rows


def test_the_section_is_the_recall_study_s_with_rows_per_haystack():
    rows = trials()
    section = passkey.aggregate(rows)
    assert {key: section[key] for key in ("rows", "gates")} == {
        key: needle.aggregate(rows)[key] for key in ("rows", "gates")
    }
    lines = {(row["haystack"], row["arm"]): row for row in section["by_haystack"] if row["mode"] == "aware"}
    assert set(lines) == {(h, a) for h in ("noise", "corpus") for a in ("full", "keydiff-10pct", "l2norm-10pct")}
    assert lines["corpus", "keydiff-10pct"]["hits"] == 0
    assert lines["noise", "keydiff-10pct"]["hits"] == lines["noise", "full"]["hits"]
    assert sum(row["n"] for row in lines.values()) == sum(row["n"] for row in section["rows"] if row["mode"] == "aware")
    assert {row["mode"] for row in section["by_haystack"]} == {"aware"}
