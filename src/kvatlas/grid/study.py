"""What a study is to the rest of the package: one record, and what its unfolding into cells has at hand.

Knows no single study; the records themselves are in `kvatlas.grid.studies`, one file each. Pure functions of the
configuration; no files, no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvatlas.grid.cells import Cell, Config, Work
from kvatlas.paths import Paths, model_file, text_file

NO_CONTEXT = "no_context"
QUESTION_TOKENS = 64
"""What a question without its context is counted as when cells are sized."""

Spec = dict[str, Any]


def device_keys(config: Config) -> Spec:
    """Return the keys of a spec that say on what a model runs; `portable` only where it is asked for."""
    return {"device": config.get("device", "auto")} | ({"portable": True} if config.get("portable") else {})


@dataclass(frozen=True)
class StudyContext:
    """One study of one configuration for one model."""

    config: Config
    record: Study
    model: str

    @property
    def study(self) -> str:
        """The study's name."""
        return self.record.name

    @property
    def study_config(self) -> Config:
        """The study's part of the configuration."""
        study_config: Config = self.config["studies"][self.study]
        return study_config

    @property
    def paths(self) -> Paths:
        """The run's paths."""
        return Paths(self.config["run"])

    def base_spec(self, kind: str) -> Spec:
        """Return the keys that begin every spec."""
        return {"kind": kind, "study": self.study, "model": self.model}

    def device_spec(self) -> Spec:
        """Return the keys that say where and in which numbers a model runs."""
        return {"dtype": self.config.get("dtype", "auto")} | device_keys(self.config)

    def model_input(self) -> dict[str, str]:
        """Return the input that every kind has."""
        return {"model": model_file(self.model)}

    def text_input(self) -> dict[str, str]:
        """Return the text of the study, if it names one."""
        return {"text": text_file(self.study_config["text"])} if "text" in self.study_config else {}

    def text_work(self) -> Work:
        """Return the work of running each of the study's prompts, cut from its text, once."""
        prompts, tokens = self.study_config["prompts"], self.study_config["context"]
        return Work(prompts, tokens, forwards=prompts, tokens=prompts * tokens)

    def trial_cell(self, group: str, spec: Spec, inputs: Mapping[str, str], work: Work) -> Cell:
        """Return the cell of an arm, which reads the model and `inputs`; `spec` has the arm's keys."""
        kind = self.record.kind
        whole = self.base_spec(kind) | spec | self.device_spec()
        output = self.paths.cell(self.study, self.model, spec["arm"], group)
        read = {**self.model_input(), **inputs}
        return Cell(kind, self.study, self.model, spec["arm"], group, whole, output, read, work)


@dataclass(frozen=True)
class Study:
    """All that the pipeline needs to know of a study.

    Args:
        name: its key in a configuration, and the name of its modules in `analysis.studies` and `reporting.sections`.
        label: how pages call it. order: its place on a page. question: what it asks, in two sentences.
        kind: the module of `kvatlas.experiments` that makes its trials.
        unfold: from one model's part of a configuration to its cells, with their sizes.
        analysis, template: whose module of `analysis.studies` and whose template serve it too; its own by default.
        task: the module of `kvatlas.tasks` that writes its prompts; empty where it cuts a text.
        keys: the study's keys in a configuration, as JSON schemas. required: those that must be there.
        rules: further rules of its JSON schema.
        data_files: the parquet files of a report that hold its trials beside `trials.parquet`, from its configuration.
    """

    name: str
    label: str
    order: int
    question: str
    kind: str
    unfold: Callable[[StudyContext], Iterator[Cell]]
    keys: Mapping[str, Any]
    required: tuple[str, ...]
    rules: Mapping[str, Any] = field(default_factory=dict)
    analysis: str = ""
    template: str = ""
    task: str = ""
    data_files: Callable[[Config], tuple[str, ...]] = lambda study_config: ()

    @property
    def analysis_module(self) -> str:
        """The module that turns its trials into a table."""
        return f"kvatlas.analysis.studies.{self.analysis or self.name}"

    @property
    def page(self) -> str:
        """The report's page of the study."""
        return f"{self.name.replace('_', '-')}.md"

    @property
    def template_name(self) -> str:
        """The template of its section."""
        return self.template or self.name

    def config_schema(self) -> dict[str, Any]:
        """Return the JSON schema of the study's part of a configuration; it refers to the shared definitions."""
        keys = {"models": {"$ref": "#/$defs/study_models"}, **self.keys}
        shape = {"type": "object", "additionalProperties": False, "required": list(self.required), "properties": keys}
        return shape | dict(self.rules)


PROTECTION_KEYS: Mapping[str, Any] = {
    "n_sinks": {"$ref": "#/$defs/n_sinks"},
    "n_recent": {"$ref": "#/$defs/n_recent"},
    "skip_layers": {"$ref": "#/$defs/skip_layers"},
}
"""Keys of studies that say what is protected."""


def shards(count: int, size: int) -> list[list[int]]:
    """Return the numbers 0 to count - 1 in consecutive parts of `size`."""
    return [list(range(start, min(start + size, count))) for start in range(0, count, size)]


def blocks_of(tokens: int, block: int) -> int:
    """Return the forward passes that stream `tokens` in blocks; a block of 0 is everything at once."""
    return -(-tokens // (block or tokens or 1))
