"""Which of our modules, data files and packages each step of the pipeline depends on: one table.

`kvatlas.tracking.fingerprint` hashes what this module names. What is found by its file (policies, quantizers, studies,
sections, figures) is named here, because a static closure does not see it.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvatlas.compression import methods
from kvatlas.grid import policy_parameters, unfold
from kvatlas.grid.cells import EMBED, PROMPTS
from kvatlas.grid.studies import all_studies
from kvatlas.lm import path_content
from kvatlas.lm.catalog import load_models, model_titles
from kvatlas.paths import (
    CLAIMS_FILE,
    MODELS_FILE,
    PACKAGE_FOLDER,
    PUBLISHED_FOLDER,
    figure_names,
    module_file,
    source_name,
)
from kvatlas.tasks.ruler import all_tasks
from kvatlas.tracking.fingerprint import MODEL_PACKAGES, TABLE_PACKAGES, Explanation, combine, explain

# Keys of a catalog entry that describe a model without changing a byte of it.
_DESCRIPTIVE = ("title", "role", "max_positions", "shape", "upstream", "family")
_REPORTING = "kvatlas.reporting"


@dataclass(frozen=True)
class Step:
    """What a step of the pipeline is made of: modules with all that they import, data files, packages.

    `shows_names`: whether it spells methods and models, whose labels and titles stand where they are registered.
    """

    modules: tuple[str, ...]
    data: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    shows_names: bool = False


def _aggregate(study: str) -> Step:
    analysis = all_studies()[study].analysis_module
    return Step(("kvatlas.pipeline.tables", analysis, f"kvatlas.grid.studies.{study}"), (CLAIMS_FILE,), TABLE_PACKAGES)


def _results(_: str) -> Step:
    studies = (f"kvatlas.grid.studies.{study}" for study in all_studies())
    return Step(
        ("kvatlas.pipeline.results", *studies), (CLAIMS_FILE, *_files(PUBLISHED_FOLDER, ".csv")), TABLE_PACKAGES
    )


def _figure(name: str) -> Step:
    return Step((f"{_REPORTING}.figures.{name}",), packages=("matplotlib",), shows_names=True)


def _pages(_: str) -> Step:
    sections = (f"{_REPORTING}.sections.{study}" for study in all_studies())
    templates = _package_files("reporting/templates", "*.j2")
    return Step((f"{_REPORTING}.render", *sections, *_figure_modules()), templates, shows_names=True)


def _highlights(_: str) -> Step:
    templates = [name for name in _package_files("reporting/templates", "*.j2") if "explorer" not in name]
    return Step((f"{_REPORTING}.highlights", *_figure_modules()), tuple(templates), shows_names=True)


def _explorer(_: str) -> Step:
    templates = _package_files("reporting/templates/explorer", "*")
    return Step((f"{_REPORTING}.explorer.document",), templates, ("plotly",), shows_names=True)


STEPS: Mapping[str, Callable[[str], Step]] = {
    "aggregate": _aggregate,
    "results": _results,
    "figure": _figure,
    "pages": _pages,
    "highlights": _highlights,
    "explorer": _explorer,
}
"""Step -> what it is made of, given the study or figure that it is about (empty for steps about the whole run)."""


def step_code(step: str, subject: str = "", config: Mapping[str, Any] | None = None) -> Explanation:
    """Explain the code of a step; `subject` is its study or figure, `config` the configuration of the run."""
    made_of = STEPS[step](subject)
    notes = shown_names(config or {}) if made_of.shows_names else {}
    if config is not None and step == "aggregate":
        notes |= configuration(unfold.study_part(config, subject))
    if config is not None and step == "results":
        notes |= configuration(unfold.results_part(config)) | {"families of models": _families()}
    return explain(made_of.modules, made_of.data, made_of.packages, notes=notes)


def configuration(part: Mapping[str, Any]) -> dict[str, str]:
    """Return the note that stands for a part of a configuration."""
    return {"configuration": combine({"part": json.dumps(part, sort_keys=True)})}


def _families() -> str:
    """What the comparison with published numbers reads of the catalog."""
    catalog = load_models(MODELS_FILE) if Path(MODELS_FILE).is_file() else {}
    related = {name: [entry["family"], entry.get("shape")] for name, entry in catalog.items() if "family" in entry}
    return combine({"families": json.dumps(related, sort_keys=True)})


def shown_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what pages and figures show of a run's policies, quantizers, tasks and models beside their names."""
    registered, catalog = methods.policies(), model_titles(Path(MODELS_FILE).resolve())
    studies = config.get("studies", {})
    policies = {policy_parameters.policy_of(config, method)["name"] for method in _named(studies, "methods")}
    shown = sorted(policies & set(registered))
    labels = {f"label {name}": f"{registered[name].label} ({registered[name].order})" for name in shown}
    labels |= {
        f"format {name}": f"{quantizer.bits} bits, {quantizer.granularity}"
        for name, quantizer in methods.quantizers().items()
        if name in _named(studies, "quantizers")
    }
    named_tasks = sorted({task for study in studies.values() for task in study.get("tasks", ())})
    labels |= {f"task {task}": all_tasks()[task].label for task in named_tasks}
    return labels | {f"title {name}": catalog.get(name, name) for name in config.get("models", ())}


def _named(config: Any, kind: str) -> set[str]:
    """The names in all lists `methods` or `quantizers` of a part of a configuration."""
    if isinstance(config, list):
        return {name for item in config for name in _named(item, kind)}
    if not isinstance(config, Mapping):
        return set()
    return {name for key, value in config.items() for name in (value if key == kind else _named(value, kind))}


def cell_step(spec: Mapping[str, Any]) -> Step:
    """Return what a cell is made of: its experiment, and of tasks and methods only those that its spec names."""
    kind = spec["kind"]
    modules = [f"kvatlas.experiments.{kind}"]
    packages: tuple[str, ...] = MODEL_PACKAGES
    if kind == PROMPTS:
        modules.append(f"kvatlas.tasks.{spec['task']}")
    if kind == EMBED:
        # It lists the cells that it reads.
        modules += ["kvatlas.grid.unfold", *(f"kvatlas.grid.studies.{study}" for study in spec["studies"])]
        packages = (*MODEL_PACKAGES, "sentence-transformers")
    policy = spec.get("policy", {"name": policy_parameters.FULL})
    base = policy_parameters.base_of(policy)
    quantizer = spec.get("quantizer", policy_parameters.NO_QUANTIZER)
    methods_named = [policy_parameters.module_of("policy", named["name"]) for named in (policy, base) if named]
    methods_named.append(policy_parameters.module_of("quantizer", quantizer))
    modules += [module for module in methods_named if module is not None]
    return Step(tuple(modules), packages=packages)


def cell_code(spec: Mapping[str, Any], *, track_versions: bool = True) -> Explanation:
    """Explain the code of a cell; the versions of packages count where they are tracked."""
    step = cell_step(spec)
    notes = configuration(spec["config"]) if "config" in spec else {}
    return explain(step.modules, packages=step.packages if track_versions else (), notes=notes)


def fetch_code(kind: str, entry: Mapping[str, Any]) -> Explanation:
    """Explain what decides the bytes of a fetched `model` or `text`: its catalog entry, and the code that converts it.

    Downloaded files are compared with pinned hashes, so how they are downloaded does not count; files of a `path` have
    none, and what they hold counts.
    """
    modules = ["kvatlas.lm.texts"] if kind == "text" else ["kvatlas.lm.gguf"] if entry.get("format") == "gguf" else []
    decisive = {key: value for key, value in entry.items() if key not in _DESCRIPTIVE}
    notes = {"entry": json.dumps(decisive, sort_keys=True)}
    if entry["source"] == "path":
        notes[f"content of {entry['path']}"] = path_content.digest(entry)
    return explain(modules, notes=notes, follow=False)


def figure_title(name: str) -> tuple[str, str]:
    """Return the title and caption of a figure, read from its file."""
    tree = ast.parse((PACKAGE_FOLDER / "reporting/figures" / f"{name}.py").read_text(encoding="utf-8"))
    texts = {
        target.id: ast.literal_eval(item.value)
        for item in tree.body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name) and target.id in ("TITLE", "CAPTION")
    }
    return texts["TITLE"], texts["CAPTION"]


def missing_experiment(kind: str) -> str | None:
    """Report that a kind of cell cannot run in this version, or return None when it can."""
    module = f"kvatlas.experiments.{kind}"
    return None if module_file(module) else f"module {module} does not exist in this version"


def _figure_modules() -> tuple[str, ...]:
    return tuple(f"{_REPORTING}.figures.{name}" for name in figure_names())


def _package_files(folder: str, pattern: str) -> tuple[str, ...]:
    """The package's own data files, by the repository's names."""
    paths = (path for path in (PACKAGE_FOLDER / folder).rglob(pattern) if path.is_file())
    return tuple(sorted(source_name(path) for path in paths))


def _files(folder: str, suffix: str) -> list[str]:
    return sorted(f"{folder}/{path.name}" for path in Path(folder).glob(f"*{suffix}"))
