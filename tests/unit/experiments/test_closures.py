"""Which code a kind of cell depends on: editing one experiment reruns no cell of another."""

from __future__ import annotations

import pytest

from kvatlas.grid import config, unfold
from kvatlas.grid.cells import EMBED, PREFILL, PROMPTS
from kvatlas.grid.studies import trial_kinds
from kvatlas.tracking import dependencies
from kvatlas.tracking.fingerprint import closure
from tests.support.places import ROOT

PACKAGE = "kvatlas.experiments"
KINDS = sorted([PROMPTS, PREFILL, EMBED, *trial_kinds()])


def test_these_are_all_kinds() -> None:
    grids = [unfold.grid(config.load(ROOT / f"config/{name}.yaml", root=ROOT)) for name in ("paper", "ruler")]
    assert {cell.kind for grid in grids for cell in grid.cells.values()} | {EMBED} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_depends_on_no_other_kind(kind: str) -> None:
    modules = closure((f"{PACKAGE}.{kind}",))
    assert f"{PACKAGE}.{kind}" in modules
    assert not {f"{PACKAGE}.{other}" for other in KINDS if other != kind} & set(modules)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_depends_on_neither_the_grid_nor_the_pages(kind: str) -> None:
    above = ("grid", "tracking", "pipeline", "analysis", "reporting", "cli")
    assert not [
        name for name in closure((f"{PACKAGE}.{kind}",)) if name.split(".")[1:2] and name.split(".")[1] in above
    ]


@pytest.mark.parametrize("kind", ["attention_loss", "online_lm", "quantizer_error"])
def test_a_kind_without_prompts_depends_on_no_task_and_no_decoding(kind: str) -> None:
    modules = closure((f"{PACKAGE}.{kind}",))
    assert not [name for name in modules if name.startswith("kvatlas.tasks") or name == f"{PACKAGE}.decoding"]


def test_prompts_depend_on_their_task_and_on_no_other() -> None:
    files = dependencies.cell_code({"kind": "prompts", "task": "passkey"})
    assert "src/kvatlas/tasks/passkey.py" in files
    assert not {"src/kvatlas/tasks/needle.py", "src/kvatlas/tasks/suite.py"} & set(files)
