"""The aggregates that the tests of sections and figures read."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import all_studies


@pytest.fixture(scope="session")
def results() -> dict[str, Any]:
    """A run with every study; tests that change it copy it first."""
    return all_studies.results()
