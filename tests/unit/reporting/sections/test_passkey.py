"""The passkey section: hits in each haystack, and what each arm protects by the study's configuration."""

from __future__ import annotations

import copy
from typing import Any

from kvatlas.reporting.sections import passkey

CONFIG = {"n_sinks": 0, "n_recent": 0, "protections": {"fair": {"n_sinks": 4, "n_recent": 32}}}


def lines(results: dict[str, Any]) -> list[dict[str, str]]:
    (table,) = passkey.main_tables(results, CONFIG)
    return [dict(zip(table.columns, row.cells, strict=True)) for row in table.rows]


def test_each_haystack_has_its_own_line_with_the_hits_of_its_trials(results: dict[str, Any]) -> None:
    counts = {(row["haystack"], row["arm"]): row for row in results["studies"]["passkey"]["by_haystack"]}
    shown = lines(results)
    assert {line["Haystack"] for line in shown} == {"noise", "news"}
    assert {(line["Haystack"], line["Arm"]): line["Hits"] for line in shown} == {
        key: f"{row['hits']}/{row['n']}" for key, row in counts.items()
    }


def test_an_arm_shows_what_its_protection_protects_in_the_configuration(results: dict[str, Any]) -> None:
    changed = copy.deepcopy(results)
    for row in changed["studies"]["passkey"]["by_haystack"]:
        row["protection"] = "fair" if row["method"] == "streaming_llm" else "base"
    protected = {(line["Method"], line["Protected"]) for line in lines(changed)}
    assert {("Full cache", "–"), ("Naive Drop", "nothing protected")} <= protected
    assert ("StreamingLLM", "4 sinks + 32 recent protected") in protected
