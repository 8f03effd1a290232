"""The grid of a run: a configuration becomes cells, each with its kind, spec, output and inputs.

A pure function of the configuration; every path of a run is made here and nowhere else. How a study unfolds into cells is
`kvatlas.studies`' business. Imports neither torch nor transformers and reads no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

RECALL = "recall"
PREFILL = "prefill"
PROMPTS = "prompts"
EMBED = "embed"

Config = Mapping[str, Any]


def model_file(model: str) -> str:
    """The file that stands for a fetched model; the model's folder is its parent."""
    return f"resources/models/{model}/provenance.json"


def text_file(text: str) -> str:
    """A fetched text."""
    return f"resources/text/{text}.txt"


@dataclass(frozen=True)
class Paths:
    """Where the files of the run `run` lie, relative to the working directory."""

    run: str

    @property
    def results(self) -> str:
        """The folder of everything computed, which git ignores."""
        return f"results/{self.run}"

    @property
    def report(self) -> str:
        """The folder that is published."""
        return f"reports/{self.run}"

    def prompts(self, study: str, model: str, group: str) -> str:
        """The prompts of a group, one JSON line each."""
        return f"{self.results}/prompts/{study}/{model}/{group}.jsonl"

    def prefill(self, study: str, model: str, group: str) -> str:
        """The manifest of a prefill; its tensors are in `tensors_of(manifest)`."""
        return f"{self.results}/prefill/{study}/{model}/{group}.json"

    def cell(self, study: str, model: str, arm: str, group: str) -> str:
        """The trials of an arm on a group."""
        return f"{self.results}/cells/{study}/{model}/{arm}/{group}.jsonl"

    def checked(self, study: str, model: str, group: str) -> str:
        """The seal of a group: its cells were complete, current and paired."""
        return f"{self.results}/checked/{study}/{model}/{group}.json"

    def embeddings(self, model: str) -> str:
        """The embedding cosines of one model's outputs."""
        return f"{self.results}/embeddings/{model}.jsonl"

    def table(self, study: str) -> str:
        """The aggregates of a study."""
        return f"{self.results}/tables/{study}.json"

    def figure(self, name: str) -> str:
        """The stamp of a figure; the pictures themselves are in the report's folder."""
        return f"{self.results}/figures/{name}.json"


def tensors_of(manifest: str | Path) -> Path:
    """The tensors that belong to the manifest of a prefill."""
    return Path(manifest).with_suffix(".safetensors")


def timing_of(cell: str | Path) -> Path:
    """The sidecar with the durations of a cell."""
    return Path(cell).with_suffix(".timing.json")


def code_record(output: str | Path) -> Path | None:
    """The file that tells which code made an output of a run; None for files outside results/ and reports/."""
    parts = PurePosixPath(output).parts
    known = len(parts) > 2 and parts[0] in ("results", "reports")
    return Path("results", parts[1], "code", f"{PurePosixPath(output)}.json") if known else None


@dataclass(frozen=True)
class Cell:
    """The smallest thing worth rerunning.

    Args:
        kind: what is done, a module of `kvatlas.experiments` (or `prompts`).
        study, model, arm, group: which of them; `arm` is empty for prompts and prefills.
        spec: everything in the configuration that affects the output. output: its path. inputs: name -> path.
    """

    kind: str
    study: str
    model: str
    arm: str
    group: str
    spec: Mapping[str, Any]
    output: str
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """How messages call the cell."""
        return " ".join(part for part in (self.kind, self.study, self.model, self.arm, self.group) if part)

    def spec_json(self) -> str:
        """The spec as one line with sorted keys."""
        return json.dumps(self.spec, sort_keys=True)


class Grid:
    """All cells of a configuration, found by output or by place."""

    def __init__(self, config: Config, cells: Iterable[Cell]) -> None:
        self.config = config
        self.paths = Paths(config["run"])
        self.cells: dict[str, Cell] = {cell.output: cell for cell in cells}
        self._by_group: dict[tuple[str, str, str], list[Cell]] = {}
        for cell in self.trial_cells():
            self._by_group.setdefault((cell.study, cell.model, cell.group), []).append(cell)

    def of_kind(self, kind: str) -> list[Cell]:
        """The cells of one kind, in the order of the configuration."""
        return [cell for cell in self.cells.values() if cell.kind == kind]

    def trial_cells(self, study: str | None = None, model: str | None = None) -> list[Cell]:
        """The cells that hold trials (all but prompts and prefills), of one study or model where given."""
        return [
            cell
            for cell in self.cells.values()
            if cell.arm and study in (None, cell.study) and model in (None, cell.model)
        ]

    def groups(self, study: str | None = None, model: str | None = None) -> list[tuple[str, str, str]]:
        """The (study, model, group) of all trial cells, of one study or model where given."""
        return [key for key in self._by_group if study in (None, key[0]) and model in (None, key[1])]

    def group(self, study: str, model: str, group: str) -> list[Cell]:
        """The trial cells that share a group, one per arm."""
        return self._by_group[study, model, group]

    def seals(self, study: str | None = None, model: str | None = None) -> list[str]:
        """The paths of the groups' seals, of one study or model where given."""
        return [self.paths.checked(*key) for key in self.groups(study, model)]

    def embedded_models(self, study: str | None = None) -> list[str]:
        """The models whose outputs are embedded: those of recall cells, of one study where given."""
        return list(dict.fromkeys(c.model for c in self.of_kind(RECALL) if study in (None, c.study)))

    def find(self, path: str) -> Cell | None:
        """The cell that writes `path`, also by the name of its tensors or timing sidecar."""
        plain = PurePosixPath(path).as_posix()
        for suffix, own in (("", ""), (".safetensors", ".json"), (".timing.json", ".jsonl")):
            cell = self.cells.get(plain.removesuffix(suffix) + own if suffix and plain.endswith(suffix) else plain)
            if cell is not None:
                return cell
        return None
