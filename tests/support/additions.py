"""A copy of the package with one of everything added, and what the copy makes of it.

The additions are `tests/stand_ins/additions/WHAT/`, laid out as the repository. `python -m tests.support.additions`, run
in the copy and with its package, prints the answers as JSON.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

import kvatlas
from kvatlas.analysis.claims import claim_file, judge
from kvatlas.compression import methods
from kvatlas.compression.apply import Compressor, quantize
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy, make_store
from kvatlas.experiments import prompts
from kvatlas.files import read_json
from kvatlas.grid import config, policy_parameters
from kvatlas.lm.loading import LanguageModel
from kvatlas.paths import figure_names
from kvatlas.pipeline.tables import aggregate
from kvatlas.pipeline.workflow import Workflow
from kvatlas.reporting import environment, figures, labels, methods_page, render, sections, style
from kvatlas.tracking import dependencies
from tests.support import synthetic
from tests.support.places import REPORTS, ROOT
from tests.support.policies import SPECS
from tests.support.tiny_models import tiny_model, tiny_tokenizer

ADDITIONS = ROOT / "tests/stand_ins/additions"
CONFIG = """
run: toy
title: Toy
models: [mine]
embedder: all-minilm-l6-v2
methods:
  value_norm_l1: {policy: value_norm, p: 1.0}
studies:
  needle: &recall
    task: badge
    contexts: [512]
    seeds: 1
    depths: [10, 90]
    new_tokens: 8
    n_sinks: 4
    n_recent: 32
    modes:
      aware: {methods: [value_norm, value_norm_l1], budgets: ["4x"], quantizers: [none, half]}
  visitor:
    <<: *recall
    task: needle
    visitors: 3
  ruler:
    tasks: [niah_two_values]
    contexts: [512]
    seeds: 2
    n_sinks: 4
    n_recent: 32
    modes:
      agnostic: {methods: [value_norm], budgets: ["4x"]}
"""
TOKENS = 60


def added_files(what: str) -> list[str]:
    """The files of an addition, relative to the repository."""
    folder = ADDITIONS / what
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def make_copy(root: Path) -> None:
    """Copy the sources to `root`, with everything added and `toy.yaml` to run."""
    for folder in ("src/kvatlas", "config", "docs"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for addition in (path for path in ADDITIONS.iterdir() if path.is_dir()):
        for name in added_files(addition.name):
            _add(root / name, (addition / name).read_text(encoding="utf-8"))
    (root / "toy.yaml").write_text(CONFIG)


def _add(path: Path, text: str) -> None:
    """Write a new file, or put an entry behind a file's others."""
    before, mark, after = path.read_text(encoding="utf-8").partition("\nreanalyses:") if path.exists() else ("", "", "")
    path.write_text(before.rstrip() + text + mark + after if before else text)


def policy_answers(flow: Workflow) -> dict[str, Any]:
    """What is known of `value_norm`, and what it keeps of a prompt."""
    policy, cache, lm = make_policy({"name": "value_norm", "p": 1.0}), *_prefilled()
    norms = cache.layers[0].store.read()[1].abs().sum(dim=-1)[0, 0]
    Compressor(policy, Budget("4x", n_sinks=2, n_recent=8), TOKENS, lm.rotary, [0])(cache)
    kept = cache.layers[0].positions()[0, 0].long().tolist()
    return {
        "registered": "value_norm" in methods.policies(),
        "parameters": {field.name: field.default for field in policy_parameters.policy_fields("value_norm").values()},
        "built": repr(policy),
        "kept": kept,
        "longest": sorted((norms[2:-8].argsort(descending=True)[: len(kept) - 10] + 2).tolist()),
        "label": labels.method_label("value_norm_l1"),
        "color": style.method_style("value_norm").color,
        "page": methods_page.methods_page(Path("docs/methods.md").read_text(encoding="utf-8")),
        "code": sorted(dependencies.cell_code({"kind": "recall", "policy": {"name": "value_norm"}})),
        "generic tests": [spec for spec in SPECS if spec["name"] == "value_norm"],
    }


def quantizer_answers(flow: Workflow) -> dict[str, Any]:
    """What is known of `half`, and what it holds of a prompt."""
    cache, _ = _prefilled()
    keys, _ = cache.layers[0].store.read()
    quantize(cache, make_store("half"))
    return {
        "registered": "half" in methods.quantizers(),
        "module": policy_parameters.module_of("quantizer", "half"),
        "as fp16": bool(torch.equal(cache.layers[0].store.read()[0], keys.to(torch.float16).to(torch.float32))),
        "bits": 8 * cache.layers[0].store.nbytes / (2 * keys.numel()),
    }


def figure_answers(flow: Workflow) -> dict[str, Any]:
    """Whether the figure is listed, and the files that are drawn of a committed report."""
    results = read_json(REPORTS[0] / "results.json")
    return {
        "listed": list(figure_names()),
        "stamps": [path for path in flow.files() if "/figures/" in path],
        "drawn": [path.name for path in figures.write("f99_models", results, [], Path()) if path.stat().st_size > 1000],
        "page code": sorted(dependencies.step_code("pages")),
    }


def task_answers(flow: Workflow) -> dict[str, Any]:
    """The prompts of a cell whose study names the task `badge`."""
    tiny_tokenizer().save_pretrained("mine")
    cell = next(
        cell for cell in flow.grid.of_kind("prompts") if cell.study == "needle" and cell.group.startswith("aware")
    )
    prompts.write(cell.spec, {"model": Path("mine")}, Path("prompts.jsonl"))
    return {
        "task": cell.spec["task"],
        "code": sorted(dependencies.cell_code(cell.spec)),
        "lengths": [len(json.loads(line)["ids"]) for line in Path("prompts.jsonl").read_text().splitlines()],
    }


def long_task_answers(flow: Workflow) -> dict[str, Any]:
    """The prompts of a cell whose study names the task `niah_two_values`, and what pages show of it."""
    tiny_tokenizer().save_pretrained("mine")
    cells = [cell for cell in flow.grid.cells.values() if cell.study == "ruler" and cell.group.startswith("agnostic")]
    (cell,) = (cell for cell in cells if cell.kind == "prompts")
    prompts.write(cell.spec, {"model": Path("mine")}, Path("long.jsonl"))
    rows = [json.loads(line) for line in Path("long.jsonl").read_text().splitlines()]
    return {
        "prompts": {row["task"]: [len(row["ids"]) for row in rows] for row in rows},
        "new_tokens": sorted({cell.spec["new_tokens"] for cell in cells if cell.arm}),
        "code": sorted(dependencies.cell_code(cell.spec)),
        "shown": dependencies.shown_names(flow.config)["task niah_two_values"],
    }


def study_answers(flow: Workflow) -> dict[str, Any]:
    """The cells, rules, table and section of the study `visitor`."""
    trials = synthetic.recall_trials(
        study="visitor", arms=synthetic.ARMS[:4], seeds=2, contexts=(512,), modes=("aware",)
    )
    table = aggregate("visitor", trials)
    contexts = sections.contexts({"studies": {"visitor": table}}, {}, flow.config)
    return {
        "arms": sorted({cell.arm for cell in flow.grid.trial_cells() if cell.study == "visitor"}),
        "schema": sorted(config.schema()["properties"]["studies"]["properties"]["visitor"]["properties"]),
        "rules": [kind for kind in flow.kinds() if "visitor" in flow.studies_pattern(kind).split("|")],
        "tables": flow.tables(),
        "table code": sorted(dependencies.step_code("aggregate", "visitor")),
        "sections": list(contexts),
        "section": str(render.render_section(environment.markdown(), "visitor", contexts["visitor"])),
    }


def entry_answers(flow: Workflow) -> dict[str, Any]:
    """What the catalog's and the claims' new entries lead to."""
    results = {"studies": read_json(REPORTS[0] / "results.json")["studies"]}
    judged = judge.evaluate(claim_file.load("config/claims.yaml"), results)
    return {
        "title": labels.model_label("mine"),
        "memory": min(flow.sizes.cell_memory(cell) for cell in flow.grid.trial_cells()),
        "verdicts": [row["verdict"] for row in judged if row["id"] == "mine"],
    }


def _prefilled() -> tuple[Any, LanguageModel]:
    lm = LanguageModel.wrap(tiny_model())
    cache = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(torch.arange(5, 5 + TOKENS)[None], cache)
    return cache, lm


ANSWERS: Mapping[str, Callable[[Workflow], dict[str, Any]]] = {
    "policy": policy_answers,
    "quantizer": quantizer_answers,
    "figure": figure_answers,
    "task": task_answers,
    "long task": long_task_answers,
    "study": study_answers,
    "entries": entry_answers,
}

if __name__ == "__main__":
    workflow = Workflow(config.load("toy.yaml"))
    print(json.dumps({"package": kvatlas.__file__} | {name: answer(workflow) for name, answer in ANSWERS.items()}))
