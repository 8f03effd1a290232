"""What the current code, configuration and catalogs would make each cell from: its spec, fingerprint and origins.

Sits between the grid (a pure function of the configuration) and the state of the repository. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.grid import unfold
from kvatlas.grid.cells import EMBED, Cell, Grid
from kvatlas.grid.sizes import Sizes
from kvatlas.paths import model_file, text_file
from kvatlas.tracking import dependencies
from kvatlas.tracking.fingerprint import Explanation, combine

Catalog = Mapping[str, Mapping[str, Any]]


class Current:
    """The cells of a grid as they would be made now.

    Args:
        sizes: decides which batches are split; its grid is the one that counts. texts: the catalog, name -> entry.
    """

    def __init__(self, sizes: Sizes, texts: Catalog) -> None:
        self.grid: Grid = sizes.grid
        self.sizes, self.models, self.texts = sizes, sizes.models, texts
        self.track_versions: bool = self.grid.config.get("track_versions", True)
        # Many cells are made of the same code.
        self._fingerprints: dict[dependencies.Step, str] = {}
        self.code = cache(self._code)
        self.upstream = cache(self._upstream)
        self._fetched = cache(self._fetched_origin)

    def cell(self, output: str) -> Cell:
        """Return the cell that writes `output`. Raises KvatlasError when the configuration has no such cell."""
        cell = self.grid.find(output)
        if cell is None:
            raise KvatlasError(f"{output}: no cell of run '{self.grid.paths.run}' writes this file; see `kvatlas plan`")
        return cell

    def spec(self, cell: Cell) -> dict[str, Any]:
        """Return the cell's spec with `upstream`, a digest of all that its inputs are made of.

        Where the prompts do not fit into `memory_mb` at once, `rows` says how many are measured together.
        """
        return {**cell.spec, **self.sizes.split(cell), "upstream": self.upstream(cell.output)}

    def explanation(self, cell: Cell) -> Explanation:
        """Return what the cell's fingerprint is made of."""
        return dependencies.cell_code(cell.spec, track_versions=self.track_versions)

    def embed_explanation(self) -> Explanation:
        """Return what the fingerprint of the embeddings is made of."""
        studies = self.grid.embedded_studies()
        spec = {"kind": EMBED, "studies": studies, "config": unfold.study_part(self.grid.config, *studies)}
        return dependencies.cell_code(spec, track_versions=self.track_versions)

    def _code(self, output: str) -> str:
        """The fingerprint of the cell that writes `output`."""
        cell = self.grid.cells[output]
        step = dependencies.cell_step(cell.spec)
        if step not in self._fingerprints:
            self._fingerprints[step] = combine(self.explanation(cell))
        return self._fingerprints[step]

    def _upstream(self, output: str) -> str:
        return combine({name: self._origin(path) for name, path in self.grid.cells[output].inputs.items()})

    def _origin(self, path: str) -> str:
        cell = self.grid.cells.get(path)
        if cell is None:
            return self._fetched(path)
        # Which statistics a prefill keeps decides what it can serve, not what any arm reads from it.
        spec = {key: value for key, value in cell.spec.items() if key not in ("windows", "queries")}
        return combine(
            {"spec": json.dumps(spec, sort_keys=True), "code": self.code(path), "upstream": self.upstream(path)}
        )

    def _fetched_origin(self, path: str) -> str:
        kind, entry = next(
            (kind, entry)
            for kind, catalog, file in (("model", self.models, model_file), ("text", self.texts, text_file))
            for name, entry in catalog.items()
            if file(name) == path
        )
        return combine(dependencies.fetch_code(kind, entry))
