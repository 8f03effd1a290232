"""What the Snakefile needs to know: specs, fingerprints, inputs and resources as functions of wildcards.

Sits between the grid (a pure function of the configuration) and the state of the repository (catalogs, code).
Imports neither torch nor transformers.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json
from kvatlas.grid import config, policy_parameters, studies
from kvatlas.grid.cells import EMBED, PREFILL, PROMPTS, RECALL, Cell
from kvatlas.grid.sizes import Sizes
from kvatlas.lm.catalog import load_texts
from kvatlas.paths import TEXTS_FILE, model_file, text_file
from kvatlas.tracking import dependencies
from kvatlas.tracking.fingerprint import Explanation, combine

# Keys of the configuration that change how a run is carried out, but nothing that it reports.
_MACHINERY = ("keep_prefill", "threads", "track_versions", "publish", "highlights")

OfWildcards = Callable[[Any], Any]


class Workflow(Sizes):
    """A validated configuration in a repository, seen from the Snakefile and from the commands that need the grid."""

    def __init__(self, configuration: config.Config, root: Path | str = ".") -> None:
        super().__init__(configuration, root)
        self.texts = load_texts(Path(root) / TEXTS_FILE)
        self.track_versions: bool = configuration.get("track_versions", True)
        self.keep_prefill: bool = configuration.get("keep_prefill", False)
        self.threads: int = configuration.get("threads", 1)
        self.code = cache(self._code)
        self.upstream = cache(self._upstream)
        self.kind_code = cache(self._kind_code)
        self.fetched = cache(self._fetched_origin)

    @classmethod
    def open(cls, configuration: Mapping[str, Any], files: list[str], root: Path | str) -> Workflow:
        """Validate Snakemake's configuration, merged from `files`, or leave with one line on stderr."""
        try:
            for file in files:
                config.read(file)
            opened = cls(config.validate(configuration, root), root)
            opened.require_experiments()
            opened.require_memory()
            return opened
        except KvatlasError as error:
            sys.exit(f"kvatlas: error: {files[-1] if files else 'config'}: {error}")

    def require_experiments(self) -> None:
        """Raise KvatlasError when a study of the configuration needs an experiment that this version lacks."""
        for cell in self.grid.cells.values():
            problem = dependencies.why_missing(cell.kind)
            if problem:
                raise KvatlasError(f"studies.{cell.study}: {problem}; remove the study or update kvatlas")

    # -- cells

    def cell_at(self, kind: str, wildcards: Any) -> Cell:
        """The cell of one kind at some wildcards. Raises KvatlasError when the configuration has no such cell."""
        study, model, group = wildcards.study, wildcards.model, wildcards.group
        place = {PROMPTS: self.paths.prompts, PREFILL: self.paths.prefill}.get(kind)
        output = place(study, model, group) if place else self.paths.cell(study, model, wildcards.arm, group)
        return self.cell(output)

    def cell(self, output: str) -> Cell:
        """The cell that writes `output`. Raises KvatlasError when the configuration has no such cell."""
        cell = self.grid.find(output)
        if cell is None:
            raise KvatlasError(f"{output}: no cell of run '{self.paths.run}' writes this file; see `kvatlas plan`")
        return cell

    def spec(self, cell: Cell) -> dict[str, Any]:
        """The cell's spec with `upstream`, a digest of all that its inputs are made of.

        Where the prompts do not fit into `memory_mb` at once, `rows` says how many are measured together.
        """
        return {**cell.spec, **self.split(cell), "upstream": self.upstream(cell.output)}

    def explanation(self, cell: Cell) -> Explanation:
        """What the cell's fingerprint is made of."""
        return dependencies.cell_code(cell.spec, track_versions=self.track_versions)

    def _code(self, output: str) -> str:
        cell = self.grid.cells[output]
        named = (cell.spec.get("policy", {}).get("name", ""), cell.spec.get("quantizer", ""))
        return self.kind_code(cell.kind, cell.spec.get("task", ""), *named)

    def _kind_code(self, kind: str, task: str, policy: str, quantizer: str) -> str:
        spec = {
            "kind": kind,
            "task": task,
            "policy": {"name": policy or policy_parameters.FULL},
            "quantizer": quantizer or policy_parameters.NO_QUANTIZER,
        }
        return combine(dependencies.cell_code(spec, track_versions=self.track_versions))

    def _upstream(self, output: str) -> str:
        parts = {name: self._origin(path) for name, path in self.grid.cells[output].inputs.items()}
        return combine(parts)

    def _origin(self, path: str) -> str:
        cell = self.grid.cells.get(path)
        if cell is None:
            return self.fetched(path)
        # Which windows a prefill keeps decides what it can serve, not what any arm reads from it.
        spec = {key: value for key, value in cell.spec.items() if key != "windows"}
        return combine(
            {
                "spec": json.dumps(spec, sort_keys=True),
                "code": self.code(path),
                "upstream": self.upstream(path),
            }
        )

    def _fetched_origin(self, path: str) -> str:
        kind, entry = next(
            (kind, entry)
            for kind, catalog, file in (("model", self.models, model_file), ("text", self.texts, text_file))
            for name, entry in catalog.items()
            if file(name) == path
        )
        return combine(dependencies.fetch_code(kind, entry))

    # -- functions of wildcards, for rules

    def specs(self, kind: str) -> OfWildcards:
        """The spec of a kind of cell, as one line of JSON."""
        return lambda wildcards: json.dumps(self.spec(self.cell_at(kind, wildcards)), sort_keys=True)

    def codes(self, kind: str) -> OfWildcards:
        """The fingerprint of a kind of cell."""
        return lambda wildcards: self.code(self.cell_at(kind, wildcards).output)

    def inputs(self, kind: str) -> OfWildcards:
        """The input files of a kind of cell, by name."""
        return lambda wildcards: dict(self.cell_at(kind, wildcards).inputs)

    def named_inputs(self, kind: str) -> OfWildcards:
        """The same as arguments of `--input`."""
        return lambda wildcards: [f"{name}={path}" for name, path in self.cell_at(kind, wildcards).inputs.items()]

    def model_entry(self, wildcards: Any, output: Any) -> str:
        """A model's catalog entry as one line of JSON; untracked (it depends on `output`), see `model_code`."""
        return json.dumps(self.models[wildcards.model], sort_keys=True)

    def text_entry(self, wildcards: Any, output: Any) -> str:
        """A text's catalog entry as one line of JSON; untracked, see `text_code`."""
        return json.dumps(self.texts[wildcards.text], sort_keys=True)

    def model_code(self, wildcards: Any) -> str:
        """The fingerprint of a fetched model."""
        return combine(dependencies.fetch_code("model", self.models[wildcards.model]))

    def text_code(self, wildcards: Any) -> str:
        """The fingerprint of a fetched text."""
        return combine(dependencies.fetch_code("text", self.texts[wildcards.text]))

    def verify_cells(self, wildcards: Any) -> list[str]:
        """The cells of a group."""
        group = self.grid.group(wildcards.study, wildcards.model, wildcards.group)
        return [cell.output for cell in group]

    def verify_spec(self, wildcards: Any, input: Any) -> str:
        """What verifying a group needs to know.

        Snakemake does not track params that depend on `input`, and that is wanted: the grid of the other groups
        does not matter here, and what matters is in `verify_code`.
        """
        place = {"study": wildcards.study, "model": wildcards.model, "group": wildcards.group}
        kept = ("track_versions", "memory_mb")
        part = studies.part(self.config, wildcards.study)
        part |= {key: self.config[key] for key in kept if key in self.config}
        return json.dumps(place | {"keep_prefill": self.keep_prefill, "config": part}, sort_keys=True)

    def verify_code(self, wildcards: Any) -> str:
        """A digest of the specs and fingerprints of a group's cells: what is verified is a function of them."""
        parts = {
            path: self.code(path) + json.dumps(self.spec(self.cell(path)), sort_keys=True)
            for path in self.verify_cells(wildcards)
        }
        return combine(parts | {"keep_prefill": str(self.keep_prefill)})

    def model_verified(self, wildcards: Any) -> list[str]:
        """The verified groups whose outputs are embedded, of one model."""
        found = {cell.study for cell in self.grid.of_kind(RECALL)}
        return [path for study in found for path in self.grid.verified(study, wildcards.model)]

    def embed_spec(self, wildcards: Any) -> str:
        """The spec of a model's embeddings; the cells are listed by the command, not on its command line."""
        wanted = {cell.study for cell in self.grid.of_kind(RECALL)}
        part = dict(studies.part(self.config, next(iter(wanted)))) if wanted else {}
        part["studies"] = {study: self.config["studies"][study] for study in sorted(wanted)}
        head = {"kind": EMBED, "model": wildcards.model, "embedder": self.config["embedder"]}
        return json.dumps(head | {"device": self.config.get("device", "auto"), "config": part}, sort_keys=True)

    def embedder_file(self) -> str:
        """The file that stands for the sentence embedder."""
        return model_file(self.config["embedder"])

    def embed_code(self) -> str:
        """The fingerprint of the embeddings."""
        return combine(dependencies.cell_code({"kind": EMBED}, track_versions=self.track_versions))

    def table_inputs(self, wildcards: Any) -> list[str]:
        """The records of a study's verified groups, and the embeddings of its outputs."""
        models = self.grid.embedded_models(wildcards.study)
        return self.grid.verified(wildcards.study) + [self.paths.embeddings(model) for model in models]

    def table_spec(self, wildcards: Any) -> str:
        """The part of the configuration that a study's table depends on."""
        return json.dumps(studies.part(self.config, wildcards.study), sort_keys=True)

    def table_code(self, wildcards: Any) -> str:
        """The fingerprint of a study's table."""
        return combine(dependencies.table_code(wildcards.study))

    def tables(self) -> list[str]:
        """The tables of the run."""
        return [self.paths.table(study) for study in self.config["studies"]]

    def results_spec(self) -> str:
        """The configuration without what only says how a run is carried out."""
        return json.dumps({key: value for key, value in self.config.items() if key not in _MACHINERY}, sort_keys=True)

    def results_code(self) -> str:
        """The fingerprint of the report's data."""
        return combine(dependencies.results_code())

    def figure_code(self, wildcards: Any) -> str:
        """The fingerprint of a figure."""
        return combine(dependencies.figure_code(wildcards.figure))

    def figures(self) -> list[str]:
        """The stamps of all figures."""
        return [self.paths.figure(name) for name in dependencies.figure_names()]

    def lost(self) -> list[str]:
        """Cells, verified groups and pictures of a finished run whose files are gone; nothing else may need them any more.

        While there is no report yet, everything is needed anyway.
        """
        if not Path(f"{self.paths.report}/results.json").is_file():
            return []
        drawn: list[str] = []
        for stamp in self.figures():
            with contextlib.suppress(KvatlasError):
                drawn += read_json(stamp)["files"]
        kept = [*(cell.output for cell in self.grid.trial_cells()), *self.grid.verified(), *drawn]
        return [path for path in kept if not Path(path).is_file()]

    def pages_code(self) -> str:
        """The fingerprint of the pages."""
        return combine(dependencies.pages_code())

    def data_files(self) -> list[str]:
        """The parquet files of the report beside the trials."""
        return [f"{self.paths.report}/{name}" for name in studies.data_files(self.config)]

    def highlights(self) -> list[str]:
        """The record of what the run puts into the repository's README, where it is told to."""
        return [self.paths.highlights()] if self.config.get("highlights", False) else []

    def highlights_code(self) -> str:
        """The fingerprint of the highlights."""
        return combine(dependencies.highlights_code())

    def explorer_code(self) -> str:
        """The fingerprint of the explorer."""
        return combine(dependencies.explorer_code())

    def figure_title(self, wildcards: Any) -> str:
        """The title of a figure."""
        return dependencies.figure_title(wildcards.figure)[0]

    def figure_labels(self, wildcards: Any) -> dict[str, str]:
        """How a figure is listed in Snakemake's report."""
        return {"Figure": self.figure_title(wildcards)}

    def figure_caption(self, wildcards: Any) -> str:
        """The caption of a figure."""
        return dependencies.figure_title(wildcards.figure)[1]

    def memory(self, kind: str) -> OfWildcards:
        """An estimate of a cell's memory in MB: Python, weights, and the caches and logits of a batch of prompts."""
        return lambda wildcards: self.cell_memory(self.cell_at(kind, wildcards))
