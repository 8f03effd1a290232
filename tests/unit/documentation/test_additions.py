"""What an addition touches, as CONTRIBUTING.md says: files are added, none is edited, and everything else finds them."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.places import ROOT

FILES = {
    "quantizer": {
        "src/kvatlas/compression/quantizers/int16.py": '''"""Sixteen-bit floats under another name."""

from kvatlas.compression.methods import QuantizerRegistration
from kvatlas.compression.quantizers.base import SlotStore, Storage
from kvatlas.compression.quantizers.cast import fp16


@QuantizerRegistration("half", bits=16)
def half(storage: Storage = "packed") -> SlotStore:
    """Store fp16."""
    return fp16(storage)
'''
    },
    "figure": {
        "src/kvatlas/reporting/figures/f99_example.py": '''"""An example."""

TITLE, CAPTION = "Example", "An example."


def available(results):
    return False


def draw(results, trials):
    return None


def alt(results):
    return "Nothing."
'''.replace('TITLE, CAPTION = "Example", "An example."', 'TITLE = "Example"\nCAPTION = "An example."')
    },
    "fact task": {
        "src/kvatlas/tasks/badge.py": '''"""The badge task: a number on a badge."""

from kvatlas.tasks.facts import FactTask, Wording
from kvatlas.tasks.passkey import draw_locker_number, draw_passkey

WORDING = Wording(study="badge", system="Answer.", lead="A text with a number.")


def make_prompts(tokenizer, **arguments):
    return FactTask(tokenizer, WORDING, draw_passkey, draw_locker_number).prompts(**arguments)
'''
    },
    "study": {
        "src/kvatlas/grid/studies/badge.py": '''"""Badge: a number on a badge, in a long prompt."""

from kvatlas.grid.cells import RECALL
from kvatlas.grid.prompt_groups import recall_cells, recall_keys
from kvatlas.grid.study import Study

STUDY = Study(
    name="badge",
    label="Badge",
    order=35,
    kind=RECALL,
    analysis="needle",
    task="badge",
    keys=recall_keys({"haystack": {"enum": ["noise"], "description": "what surrounds it"}}),
    required=("contexts", "seeds", "depths", "new_tokens", "n_sinks", "n_recent", "modes"),
    unfold=recall_cells,
)
''',
        "src/kvatlas/reporting/sections/badge.py": '''"""The report's section on badges."""

from kvatlas.reporting import recall_tables
from kvatlas.reporting.study_rows import groups


def context(results, timings, study_config):
    tables = main_tables(results, study_config)
    return {"tables": tables} if tables else None


def main_tables(results, study_config):
    return [recall_tables.summary(results, {}, "badge", *group) for group in groups(results, "badge")]
''',
        "src/kvatlas/reporting/templates/sections/badge.md.j2": "## Badge\n\n{{ tables | length }} tables\n",
    },
}
ENTRIES = {
    "config/models.yaml": """
mine:
  title: Mine
  role: lm
  source: path
  path: mine
  license: apache-2.0
  max_positions: 4096
  shape: {layers: 2, heads: 2, kv_heads: 1, head_dim: 64}
""",
    "config/claims.yaml": """
  - id: mine
    sentence: Mine.
    source: own
    study: needle
    metric: recall
    test: level
    arms: [full]
    margin: 0.5
""",
}
CONFIG = """
run: toy
title: Toy
models: [mine]
embedder: all-minilm-l6-v2
studies:
  needle: &recall
    task: badge
    contexts: [512]
    seeds: 1
    depths: [50]
    new_tokens: 8
    n_sinks: 4
    n_recent: 32
    modes:
      aware: {methods: [full], quantizers: [half]}
  badge: *recall
"""
QUESTIONS = """
import json
from pathlib import Path
from kvatlas.analysis.claims import claim_file
from kvatlas.grid import config, policy_parameters, unfold
from kvatlas.reporting import environment, figures, labels, render, sections
from kvatlas.tracking import dependencies

grid = unfold.grid(config.load(Path("toy.yaml")))
print(json.dumps({
    "arms": sorted({(cell.study, cell.arm) for cell in grid.trial_cells()}),
    "tasks": sorted({cell.spec["task"] for cell in grid.of_kind("prompts")}),
    "prompts code": sorted(dependencies.cell_code(grid.of_kind("prompts")[0].spec)),
    "table code": sorted(dependencies.step_code("aggregate", "badge")),
    "page code": sorted(dependencies.step_code("pages")),
    "quantizer": policy_parameters.module_of("quantizer", "half"),
    "figures": [name for name in figures.names() if name in dependencies.figure_names()],
    "title": labels.model_label("mine"),
    "claims": [claim.id for claim in claim_file.load("config/claims.yaml")],
    "section": str(render.render_section(environment.markdown(), "badge", {"tables": []})),
    "shown": list(sections.contexts({"studies": {}}, {}, {})),
}))
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources with one of everything added."""
    root = tmp_path_factory.mktemp("additions")
    for folder in ("src/kvatlas", "config"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in (entry for files in FILES.values() for entry in files.items()):
        assert not (root / path).exists()
        (root / path).write_text(text)
    claims = (root / "config/claims.yaml").read_text()
    before, mark, after = claims.partition("\nreanalyses:")
    assert mark
    (root / "config/claims.yaml").write_text(before.rstrip() + ENTRIES["config/claims.yaml"] + mark + after)
    with (root / "config/models.yaml").open("a") as stream:
        stream.write(ENTRIES["config/models.yaml"])
    (root / "toy.yaml").write_text(CONFIG)
    return root


@pytest.fixture(scope="module")
def answers(checkout: Path) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(checkout / "src"), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-B", "-c", QUESTIONS]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("addition", "files"), [("quantizer", 1), ("figure", 1), ("fact task", 1), ("study", 3)])
def test_an_addition_is_so_many_files(addition: str, files: int) -> None:
    assert len(FILES[addition]) == files


def test_no_source_file_is_edited_for_any_of_them(checkout: Path) -> None:
    added = {path for files in FILES.values() for path in files}
    sources = {path.relative_to(checkout).as_posix() for path in (checkout / "src").rglob("*") if path.is_file()}
    assert {name for name in sources if not (ROOT / name).exists()} == added
    _, different, errors = filecmp.cmpfiles(checkout, ROOT, sources - added, shallow=False)
    assert (different, errors) == ([], [])


def test_a_quantizer_makes_arms(answers: dict[str, Any]) -> None:
    assert answers["quantizer"] == "kvatlas.compression.quantizers.int16"
    assert ["needle", "full-half"] in answers["arms"]


def test_a_figure_is_drawn_and_its_code_is_followed(answers: dict[str, Any]) -> None:
    assert answers["figures"][-1] == "f99_example"
    assert "src/kvatlas/reporting/figures/f99_example.py" in answers["page code"]


def test_a_fact_task_is_named_by_a_configuration(answers: dict[str, Any]) -> None:
    assert answers["tasks"] == ["badge"]
    assert "src/kvatlas/tasks/badge.py" in answers["prompts code"]


def test_a_model_and_a_claim_are_entries(answers: dict[str, Any]) -> None:
    assert answers["title"] == "Mine"
    assert answers["claims"][-1] == "mine"


def test_a_study_has_cells_a_table_and_a_section(answers: dict[str, Any]) -> None:
    assert ["badge", "full-half"] in answers["arms"]
    assert {"src/kvatlas/grid/studies/badge.py", "src/kvatlas/analysis/studies/needle.py"} <= set(answers["table code"])
    assert "src/kvatlas/reporting/sections/badge.py" in answers["page code"]
    assert "src/kvatlas/reporting/templates/sections/badge.md.j2" in answers["page code"]
    assert answers["section"].startswith("## Badge")
