"""Cells, and the grid that finds them by output or by group.

A pure function of the configuration; how a study unfolds into cells is in `kvatlas.grid.studies`, and where files lie in
`kvatlas.paths`. Imports neither torch nor transformers and reads no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from kvatlas.paths import Paths

RECALL = "recall"
PREFILL = "prefill"
PROMPTS = "prompts"
EMBED = "embed"

Config = Mapping[str, Any]
GroupKey = tuple[str, str, str]
"""(study, model, group): the cells of all arms that answer the same prompts."""


@dataclass(frozen=True)
class Work:
    """What a cell runs through its model; its memory and cost follow from it and the model's shape.

    Args:
        prompts: prompts of the cell. context: tokens of one of them.
        batch: prompts that are in memory at once unless `memory_mb` holds fewer; 0 for all.
        scored_tokens: tokens per prompt whose log-probabilities over the vocabulary are in memory at once.
        forwards: forward passes. tokens: tokens in all of them.
        splits: whether a batch can be measured in parts where `memory_mb` demands it.
    """

    prompts: int
    context: int
    batch: int = 0
    scored_tokens: int = 1
    forwards: int = 0
    tokens: int = 0
    splits: bool = False

    @property
    def at_once(self) -> int:
        """Prompts in memory at once, unless the batch is split."""
        return min(self.prompts, self.batch) if self.batch else self.prompts


@dataclass(frozen=True)
class Cell:
    """The smallest thing worth rerunning.

    Args:
        kind: what is done, a module of `kvatlas.experiments`.
        study, model, arm, group: which of them; `arm` is empty for prompts and prefills.
        spec: everything in the configuration that affects the output. output: its path. inputs: name -> path.
        work: what it runs through the model.
    """

    kind: str
    study: str
    model: str
    arm: str
    group: str
    spec: Mapping[str, Any]
    output: str
    inputs: Mapping[str, str] = field(default_factory=dict)
    work: Work = Work(1, 0)

    @property
    def name(self) -> str:
        """How messages call the cell."""
        return " ".join(part for part in (self.kind, self.study, self.model, self.arm, self.group) if part)

    @property
    def group_key(self) -> GroupKey:
        """The group that the cell belongs to."""
        return self.study, self.model, self.group


class Grid:
    """All cells of a configuration, found by output or by group."""

    def __init__(self, config: Config, cells: Iterable[Cell]) -> None:
        self.config = config
        self.paths = Paths(config["run"])
        self.cells: dict[str, Cell] = {cell.output: cell for cell in cells}
        self._by_group: dict[GroupKey, list[Cell]] = {}
        for cell in self.trial_cells():
            self._by_group.setdefault(cell.group_key, []).append(cell)

    def of_kind(self, kind: str) -> list[Cell]:
        """Return the cells of one kind, in the order of the configuration."""
        return [cell for cell in self.cells.values() if cell.kind == kind]

    def trial_cells(self, study: str | None = None, model: str | None = None) -> list[Cell]:
        """Return the cells that hold trials (all but prompts and prefills), of one study or model where given."""
        return [
            cell
            for cell in self.cells.values()
            if cell.arm and study in (None, cell.study) and model in (None, cell.model)
        ]

    def groups(self, study: str | None = None, model: str | None = None) -> list[GroupKey]:
        """Return the groups of all trial cells, of one study or model where given."""
        return [key for key in self._by_group if study in (None, key[0]) and model in (None, key[1])]

    def group(self, study: str, model: str, group: str) -> list[Cell]:
        """Return the trial cells that share a group, one per arm."""
        return self._by_group[study, model, group]

    def verified(self, study: str | None = None, model: str | None = None) -> list[str]:
        """Return the paths of the groups' records of verification, of one study or model where given."""
        return [self.paths.verified(*key) for key in self.groups(study, model)]

    def embedded_models(self, study: str | None = None) -> list[str]:
        """Return the models whose outputs are embedded: those of recall cells, of one study where given."""
        return list(dict.fromkeys(cell.model for cell in self.of_kind(RECALL) if study in (None, cell.study)))

    def embedded_studies(self) -> list[str]:
        """Return the studies whose outputs are embedded."""
        return sorted({cell.study for cell in self.of_kind(RECALL)})

    def find(self, path: str) -> Cell | None:
        """Return the cell that writes `path`, also by the name of its tensors or timing sidecar."""
        plain = PurePosixPath(path).as_posix()
        for suffix, main_suffix in (("", ""), (".safetensors", ".json"), (".timing.json", ".jsonl")):
            if plain.endswith(suffix) and (cell := self.cells.get(plain.removesuffix(suffix) + main_suffix)):
                return cell
        return None
