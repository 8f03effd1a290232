"""Profiles name the rules that there are: a rule that a profile forgets runs there with the defaults of others."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kvatlas.grid import config
from kvatlas.grid.cells import PREFILL
from kvatlas.pipeline.workflow import Workflow
from tests.support.places import ROOT

KINDS = Workflow(config.load(ROOT / "config/smoke.yaml", ROOT), ROOT).kinds()


@pytest.fixture(scope="module")
def slurm() -> dict[str, Any]:
    profile: dict[str, Any] = yaml.safe_load((ROOT / "profiles/slurm/config.yaml").read_text(encoding="utf-8"))
    return profile


def test_on_slurm_every_kind_of_cell_is_stacked_but_perhaps_prefills(slurm: dict[str, Any]) -> None:
    assert set(slurm["groups"]) <= set(KINDS)
    assert set(KINDS) - set(slurm["groups"]) <= {PREFILL}


def test_on_slurm_every_stack_has_a_size(slurm: dict[str, Any]) -> None:
    assert set(slurm["group-components"]) == set(slurm["groups"].values())
    assert all(size > 1 for size in slurm["group-components"].values())
