"""The aggregates that the tests of sections and figures read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import all_studies, synthetic
from tests.support.places import CLAIMS_FILE, ROOT


@pytest.fixture(scope="session")
def results() -> dict[str, Any]:
    """A run with every study; tests that change it copy it first."""
    return all_studies.results()


@pytest.fixture(scope="session")
def needle_results() -> dict[str, Any]:
    """A run whose only study is the needle study, with published numbers beside it."""
    trials = synthetic.recall_trials()
    return synthetic.results_json(trials, claims_file=CLAIMS_FILE, published=ROOT / "config/published")
