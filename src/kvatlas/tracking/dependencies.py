"""Which of our modules, data files and packages each step of the pipeline depends on.

`kvatlas.tracking.fingerprint` hashes what this module names. Dynamic imports (policies, quantizers, figures) are named here,
because a static closure does not see them.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.experiments.prompts import TASKS
from kvatlas.grid import policy_parameters
from kvatlas.grid.cells import EMBED, PROMPTS
from kvatlas.lm.catalog import load_models
from kvatlas.paths import CLAIMS_FILE, MODELS_FILE, PUBLISHED_FOLDER, SOURCE_ROOT, module_file
from kvatlas.tracking.fingerprint import MODEL_PACKAGES, TABLE_PACKAGES, Explanation, explain

# Keys of a catalog entry that describe a model without changing a byte of it.
_DESCRIPTIVE = ("title", "role", "max_positions", "shape", "upstream")
FIGURES_FOLDER = "src/kvatlas/reporting/figures"
TEMPLATES_FOLDER = "src/kvatlas/reporting/templates"
EXPLORER_FOLDER = f"{TEMPLATES_FOLDER}/explorer"


def cell_code(spec: Mapping[str, Any], *, track_versions: bool = True) -> Explanation:
    """Explain the code of a cell: its experiment, and of policies and quantizers only those that its arm names."""
    kind = spec["kind"]
    modules = (
        ["kvatlas.experiments.prompts", TASKS[spec["study"]]] if kind == PROMPTS else [f"kvatlas.experiments.{kind}"]
    )
    named = (
        policy_parameters.module_of("policy", spec.get("policy", {}).get("name", policy_parameters.FULL)),
        policy_parameters.module_of("quantizer", spec.get("quantizer", policy_parameters.NO_QUANTIZER)),
    )
    modules += [module for module in named if module is not None]
    extra: tuple[str, ...] = ()
    if kind == EMBED:
        # It lists the cells that it reads.
        modules.append("kvatlas.grid.studies")
        extra = ("sentence-transformers",)
    return explain(modules, packages=(*MODEL_PACKAGES, *extra) if track_versions else ())


def fetch_code(kind: str, entry: Mapping[str, Any]) -> Explanation:
    """Explain what decides the bytes of a fetched `model` or `text`: its catalog entry, and the code that converts it.

    Downloaded files are compared with pinned hashes, so how they are downloaded does not count.
    """
    modules = ["kvatlas.lm.texts"] if kind == "text" else ["kvatlas.lm.gguf"] if entry.get("format") == "gguf" else []
    decisive = {key: value for key, value in entry.items() if key not in _DESCRIPTIVE}
    return explain(modules, notes={"entry": json.dumps(decisive, sort_keys=True)}, follow=False)


def table_code(study: str) -> Explanation:
    """Explain the code and claims that turn a study's cells into its table."""
    return explain(["kvatlas.pipeline.tables", f"kvatlas.analysis.studies.{study}"], [CLAIMS_FILE], TABLE_PACKAGES)


def results_code() -> Explanation:
    """Explain the code, claims and published numbers that turn tables into the report's data."""
    published = files_in(PUBLISHED_FOLDER, ".csv")
    return explain(["kvatlas.pipeline.results"], [CLAIMS_FILE, *published], TABLE_PACKAGES)


def figure_code(name: str) -> Explanation:
    """Explain the code of one figure."""
    return explain([f"kvatlas.reporting.figures.{name}"], packages=("matplotlib",), notes=_titles())


def pages_code() -> Explanation:
    """Explain the code and templates of the pages; captions come from the figures' modules."""
    figures = [f"kvatlas.reporting.figures.{name}" for name in figure_names()]
    return explain(["kvatlas.reporting.render", *figures], files_in(TEMPLATES_FOLDER, ".j2"), notes=_titles())


def highlights_code() -> Explanation:
    """Explain the code of what a run puts into the repository's README; the titles of figures are in it."""
    figures = [f"kvatlas.reporting.figures.{name}" for name in figure_names()]
    templates = [f"{TEMPLATES_FOLDER}/{name}.md.j2" for name in ("highlights", "macros")]
    return explain(["kvatlas.reporting.highlights", *figures], templates, notes=_titles())


def explorer_code() -> Explanation:
    """Explain the code of the explorer, what it is made of, and the plotting library inside it."""
    files = [path for suffix in (".j2", ".css", ".js") for path in files_in(EXPLORER_FOLDER, suffix)]
    return explain(["kvatlas.reporting.explorer.document"], files, ("plotly",), notes=_titles())


def _titles() -> dict[str, str]:
    """What pages and figures call the models; nothing else of the catalog is on them."""
    models = load_models() if Path(MODELS_FILE).is_file() else {}
    return {"model titles": json.dumps({name: entry["title"] for name, entry in models.items()}, sort_keys=True)}


def figure_title(name: str) -> tuple[str, str]:
    """The title and caption of a figure, read from its file."""
    tree = ast.parse((SOURCE_ROOT.parent / FIGURES_FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    found = {
        target.id: ast.literal_eval(item.value)
        for item in tree.body
        if isinstance(item, ast.Assign)
        for target in item.targets
        if isinstance(target, ast.Name) and target.id in ("TITLE", "CAPTION")
    }
    return found["TITLE"], found["CAPTION"]


def figure_names() -> list[str]:
    """The figures there are, by their files, without importing a plotting library."""
    names = [Path(path).stem for path in files_in(FIGURES_FOLDER, ".py")]
    found = [name for name in names if name[0] == "f" and name[1:].partition("_")[0].isdigit()]
    return sorted(found, key=lambda name: (int(name[1:].partition("_")[0]), name))


def files_in(folder: str, suffix: str) -> list[str]:
    """The files of a repository folder with a suffix, as sorted paths relative to the repository."""
    try:
        names = os.listdir(SOURCE_ROOT.parent / folder)
    except FileNotFoundError as error:
        raise KvatlasError(f"{folder}: no such folder; restore it from the repository") from error
    return [f"{folder}/{name}" for name in sorted(names) if name.endswith(suffix)]


def why_missing(kind: str) -> str | None:
    """Say that a kind of cell cannot run in this version, or return None when it can."""
    module = f"kvatlas.experiments.{kind}"
    known = kind == PROMPTS or module_file(module) is not None
    return None if known else f"module {module} does not exist in this version"
