"""One record per study: it names all that the rest of the package finds by it."""

from __future__ import annotations

import pytest

from kvatlas.grid import config
from kvatlas.grid.studies import all_studies, trial_kinds
from kvatlas.paths import module_file

STUDIES = all_studies()


@pytest.mark.parametrize("name", STUDIES)
def test_a_record_s_modules_exist(name: str) -> None:
    record = STUDIES[name]
    modules = [f"kvatlas.experiments.{record.kind}", record.analysis_module]
    modules += [f"kvatlas.reporting.sections.{name}"]
    modules += [f"kvatlas.tasks.{record.task}"] if record.task else []
    assert [module for module in modules if module_file(module) is None] == []


def test_the_schema_has_the_keys_of_every_study_and_of_no_other() -> None:
    assert set(config.schema()["properties"]["studies"]["properties"]) == set(STUDIES)


def test_a_page_s_order_is_one_and_labels_are_told_apart() -> None:
    assert len({record.order for record in STUDIES.values()}) == len(STUDIES)
    assert len({record.label for record in STUDIES.values()}) == len(STUDIES)


def test_studies_that_share_a_kind_share_its_rule() -> None:
    assert trial_kinds().count("recall") == 1
    assert {STUDIES[name].kind for name in ("needle", "passkey")} == {"recall"}
