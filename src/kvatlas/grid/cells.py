"""The grid of a run: a configuration becomes cells, each with its kind, spec, output and inputs.

A pure function of the configuration; how a study unfolds into cells is `kvatlas.grid.studies`' business, and
where files lie is `kvatlas.paths`'. Imports neither torch nor transformers and reads no files.
"""

from __future__ import annotations

import json
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

    def verified(self, study: str | None = None, model: str | None = None) -> list[str]:
        """The paths of the groups' records of verification, of one study or model where given."""
        return [self.paths.verified(*key) for key in self.groups(study, model)]

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
