"""What the Snakefile needs to know: specs, fingerprints, inputs and resources as functions of wildcards.

Holds the grid, the sizes of its cells and what the current code would make of them. Imports neither torch nor
transformers.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.grid import config, unfold
from kvatlas.grid.cells import EMBED, PREFILL, PROMPTS, RECALL, Cell
from kvatlas.grid.sizes import Sizes
from kvatlas.grid.studies import all_studies, trial_kinds
from kvatlas.grid.studies.ruler import RULER
from kvatlas.grid.study import device_keys
from kvatlas.lm.catalog import load_models, load_texts
from kvatlas.paths import MODELS_FILE, TEXTS_FILE, model_file
from kvatlas.terminal import visible
from kvatlas.tracking import dependencies, finished_run
from kvatlas.tracking.current import Current
from kvatlas.tracking.fingerprint import combine

# What the verification of a group reads besides its study's part of the configuration.
_VERIFY_KEYS = ("track_versions", "memory_mb")
# Without a model: a tokenizer, and Python with transformers.
_PROMPTS_MB = 2000
# Kinds of cells that read a prefill: they go before further prefills, so that few prefill files are on disk at a time.
_PRIORITY = {RECALL: 10, RULER: 10}

OfWildcards = Callable[[Any], Any]


class Workflow:
    """A validated configuration in a repository, seen from the Snakefile and from the commands that need the grid."""

    def __init__(self, configuration: config.Config, root: Path | str = ".") -> None:
        self.config = configuration
        self.grid = unfold.grid(configuration)
        self.paths = self.grid.paths
        self.sizes = Sizes(self.grid, load_models(Path(root) / MODELS_FILE))
        self.current = Current(self.sizes, load_texts(Path(root) / TEXTS_FILE))
        self.keep_prefill: bool = configuration.get("keep_prefill", False)
        self.threads: int = configuration.get("threads", 1)

    @staticmethod
    def require_folder(root: Path | str) -> None:
        """Leave with one line on stderr where Snakemake runs in another folder than the Snakefile's, or in an odd one."""
        home = Path(root).resolve()
        if set(str(home)) & set("{}"):
            sys.exit(
                f"kvatlas: error: {visible(str(home))}: Snakemake takes braces in a path for wildcards; rename the folder"
            )
        if home != Path.cwd():
            sys.exit(f"kvatlas: error: paths are relative to the Snakefile: run snakemake in {home}, without -s or -d")

    @classmethod
    def open(cls, configuration: Mapping[str, Any], files: list[str], root: Path | str) -> Workflow:
        """Validate Snakemake's configuration, merged from `files`, or leave with one line on stderr."""
        try:
            for file in files:
                config.read(file)
            opened = cls(config.validate(configuration, root), root)
            opened.require_experiments()
            opened.sizes.require_memory()
            return opened
        except KvatlasError as error:
            sys.exit(f"kvatlas: error: {files[-1] if files else 'config'}: {error}")

    def require_experiments(self) -> None:
        """Raise KvatlasError when a study of the configuration needs an experiment that this version lacks."""
        for cell in self.grid.cells.values():
            problem = dependencies.missing_experiment(cell.kind)
            if problem:
                raise KvatlasError(f"studies.{cell.study}: {problem}; remove the study or update kvatlas")

    # -- cells: one rule per kind

    def kinds(self) -> list[str]:
        """Return the kinds of cells, each of which is a rule."""
        return [PROMPTS, PREFILL, *trial_kinds()]

    def output_pattern(self, kind: str) -> str:
        """Return the output of a kind of cell, with wildcards."""
        path_of = {PROMPTS: self.paths.prompts, PREFILL: self.paths.prefill}.get(kind)
        if path_of is not None:
            return path_of("{study}", "{model}", "{group}")
        return self.paths.cell("{study}", "{model}", "{arm}", "{group}")

    def log_pattern(self, kind: str) -> str:
        """Return the log of a kind of cell, with wildcards."""
        arm = "" if kind in (PROMPTS, PREFILL) else "{arm}/"
        return f"logs/{self.paths.run}/{kind}/{{study}}/{{model}}/{arm}{{group}}.log"

    def studies_pattern(self, kind: str) -> str:
        """Return a regular expression of the studies that have cells of a kind."""
        records = all_studies().values()
        named = {
            PROMPTS: [r.name for r in records if r.task],
            PREFILL: [r.name for r in records if r.kind in _PRIORITY],
        }
        return "|".join(named.get(kind, [record.name for record in records if record.kind == kind]))

    def priority(self, kind: str) -> int:
        """Return the priority of a kind of cell."""
        return _PRIORITY.get(kind, 0)

    def threads_of(self, kind: str) -> int:
        """Return the threads of a kind of cell."""
        return 1 if kind == PROMPTS else self.threads

    def gpus(self, kind: str = RECALL) -> int:
        """Return the GPUs of a kind of cell, by default of one that runs a model."""
        return 0 if kind == PROMPTS else self.sizes.gpus()

    def memory(self, kind: str) -> OfWildcards:
        """Return an estimate of a cell's memory in MB: Python, weights, and the caches and logits of its batch."""
        if kind == PROMPTS:
            return lambda wildcards: _PROMPTS_MB
        return lambda wildcards: self.sizes.cell_memory(self.cell_at(kind, wildcards))

    def cell_at(self, kind: str, wildcards: Any) -> Cell:
        """Return the cell of one kind at some wildcards. Raises KvatlasError when the configuration has none."""
        return self.current.cell(self._output_at(kind, wildcards))

    def _output_at(self, kind: str, wildcards: Any) -> str:
        names = {name: getattr(wildcards, name, "") for name in ("study", "model", "arm", "group")}
        return self.output_pattern(kind).format(**names)

    def specs(self, kind: str) -> OfWildcards:
        """Return the spec of a kind of cell, as one line of JSON."""
        return lambda wildcards: _spec_text(self.current.spec(self.cell_at(kind, wildcards)))

    def codes(self, kind: str) -> OfWildcards:
        """Return the fingerprint of a kind of cell."""
        return lambda wildcards: self.current.code(self.cell_at(kind, wildcards).output)

    def inputs(self, kind: str) -> OfWildcards:
        """Return the input files of a kind of cell, by name."""
        return lambda wildcards: dict(self.cell_at(kind, wildcards).inputs)

    def named_inputs(self, kind: str) -> OfWildcards:
        """Return the same as arguments of `--input`."""
        return lambda wildcards: [f"{name}={path}" for name, path in self.cell_at(kind, wildcards).inputs.items()]

    # -- what is fetched

    def model_entry(self, wildcards: Any, output: Any) -> str:
        """Return a model's catalog entry as one line of JSON; untracked (it depends on `output`), see `model_code`."""
        return _spec_text(self.current.models[wildcards.model])

    def text_entry(self, wildcards: Any, output: Any) -> str:
        """Return a text's catalog entry as one line of JSON; untracked, see `text_code`."""
        return _spec_text(self.current.texts[wildcards.text])

    def model_code(self, wildcards: Any) -> str:
        """Return the fingerprint of a fetched model."""
        return combine(dependencies.fetch_code("model", self.current.models[wildcards.model]))

    def text_code(self, wildcards: Any) -> str:
        """Return the fingerprint of a fetched text."""
        return combine(dependencies.fetch_code("text", self.current.texts[wildcards.text]))

    # -- groups and embeddings

    def verify_cells(self, wildcards: Any) -> list[str]:
        """Return the cells of a group."""
        group = self.grid.group(wildcards.study, wildcards.model, wildcards.group)
        return [cell.output for cell in group]

    def verify_spec(self, wildcards: Any, input: Any) -> str:
        """Return what verifying a group needs to know.

        Snakemake does not track params that depend on `input`, and that is wanted: the grid of the other groups
        does not matter here, and what matters is in `verify_code`.
        """
        key = {"study": wildcards.study, "model": wildcards.model, "group": wildcards.group}
        config = unfold.study_part(self.config, wildcards.study)
        config |= {name: self.config[name] for name in _VERIFY_KEYS if name in self.config}
        return _spec_text(key | {"keep_prefill": self.keep_prefill, "config": config})

    def verify_code(self, wildcards: Any) -> str:
        """Return a digest of the specs and fingerprints of a group's cells: what is verified is a function of them."""
        parts = {
            path: self.current.code(path) + _spec_text(self.current.spec(self.current.cell(path)))
            for path in self.verify_cells(wildcards)
        }
        return combine(parts | {"keep_prefill": str(self.keep_prefill)})

    def embed_inputs(self, wildcards: Any) -> list[str]:
        """Return the records of the verified groups whose outputs are embedded, of one model."""
        return [path for study in self.grid.embedded_studies() for path in self.grid.verified(study, wildcards.model)]

    def _embed_spec(self, model: str) -> dict[str, Any]:
        studies = self.grid.embedded_studies()
        return {
            "kind": EMBED,
            "model": model,
            "embedder": self.config["embedder"],
            "studies": studies,
            "config": unfold.study_part(self.config, *studies),
        } | device_keys(self.config)

    def embed_spec(self, wildcards: Any) -> str:
        """Return the spec of a model's embeddings; the cells are listed by the command, not on its command line."""
        return _spec_text(self._embed_spec(wildcards.model))

    def embed_code(self) -> str:
        """Return the fingerprint of the embeddings."""
        return combine(self.current.embed_explanation())

    def embedder_file(self) -> str:
        """Return the file that stands for the sentence embedder."""
        return model_file(self.config["embedder"])

    # -- tables, results, figures and pages

    def step_code(self, step: str, wildcard: str = "") -> Any:
        """Return the fingerprint of a step; of one that is made per study or figure, as a function of that wildcard."""
        if not wildcard:
            return combine(dependencies.step_code(step, config=self.config))
        return lambda wildcards: combine(dependencies.step_code(step, getattr(wildcards, wildcard), self.config))

    def table_inputs(self, wildcards: Any) -> list[str]:
        """Return the records of a study's verified groups, and the embeddings of its outputs."""
        models = self.grid.embedded_models(wildcards.study)
        return self.grid.verified(wildcards.study) + [self.paths.embeddings(model) for model in models]

    def table_spec(self, wildcards: Any) -> str:
        """Return the part of the configuration that a study's table depends on."""
        return _spec_text(unfold.study_part(self.config, wildcards.study))

    def tables(self) -> list[str]:
        """Return the tables of the run."""
        return [self.paths.table(study) for study in self.config["studies"]]

    def results_spec(self) -> str:
        """Return the configuration without what only says how a run is carried out."""
        return _spec_text(unfold.results_part(self.config))

    def data_files(self) -> list[str]:
        """Return the parquet files of the report beside the trials."""
        return [f"{self.paths.report}/{name}" for name in unfold.data_files(self.config)]

    def study_pages(self) -> dict[str, str]:
        """Return the pages of the studies, each with what the study is called."""
        return {f"{self.paths.report}/{name}": label for name, label in unfold.study_pages(self.config).items()}

    def figure_title(self, wildcards: Any) -> str:
        """Return the title of a figure."""
        return dependencies.figure_title(wildcards.figure)[0]

    def figure_labels(self, wildcards: Any) -> dict[str, str]:
        """Return how a figure is listed in Snakemake's report."""
        return {"Figure": self.figure_title(wildcards)}

    def figure_caption(self, wildcards: Any) -> str:
        """Return the caption of a figure."""
        return dependencies.figure_title(wildcards.figure)[1]

    def files(self) -> list[str]:
        """Return every file that a finished run has; whatever of it is missing is made again."""
        return finished_run.files(self.grid)

    def set_damaged_aside(self) -> None:
        """Move the files that are no longer as they were written out of the run; each is named in a line on stderr."""
        for path in finished_run.damaged(self.grid):
            aside = Path(self.paths.damaged(path))
            aside.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, aside)
            what = "corrupt, or edited after it was written"
            print(f"kvatlas: {path}: {what}; it is in {aside} now, and a run makes it again", file=sys.stderr)

    def bring_to_the_present(self) -> None:
        """Let files that the clock puts into the future count as written now: their checksums say that they are whole."""
        late = finished_run.of_the_future(self.grid, time.time())
        for path in late:
            os.utime(path)
        if late:
            print(
                f"kvatlas: {len(late)} files were of the future, as {late[0]}; they count as written now",
                file=sys.stderr,
            )


def _spec_text(spec: Mapping[str, Any]) -> str:
    """Write what decides an output as one line of JSON; no text in it can end a script of the page that shows it."""
    return json.dumps(spec, sort_keys=True).replace("<", "\\u003c")
