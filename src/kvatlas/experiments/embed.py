"""Embedding job: how close each output is in meaning to the full cache's output on the same prompt.

One job per model embeds the outputs of all its recall cells, because importing the embedder costs more than using it.
Equal texts are embedded once.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvatlas.errors import KvatlasError
from kvatlas.files import read_jsonl, write_jsonl
from kvatlas.lm.loading import pick_device

DECIMALS = 6


def run(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Embed the outputs of the recall cells `spec["cells"]` (paths) with the folder `inputs["embedder"]`.

    Writes one line {study, arm, group, id, embed_cosine} per trial. The full cache of the same study and group must be
    among the cells; raises KvatlasError otherwise.
    """
    cells = [_read(Path(path)) for path in spec["cells"]]
    texts = sorted({trial["output"] for _, trials in cells for trial in trials})
    vectors = dict(zip(texts, encode(texts, inputs["embedder"], spec.get("device", "auto")), strict=True))
    full = {
        (place["study"], place["group"], trial["id"]): trial["output"]
        for place, trials in cells
        if place["arm"] == "full"
        for trial in trials
    }
    rows = []
    for place, trials in cells:
        for trial in trials:
            key = (place["study"], place["group"], trial["id"])
            if key not in full:
                raise KvatlasError(f"cell {place}: no full-cache output of prompt {trial['id']} to compare with")
            cosine = float(vectors[trial["output"]] @ vectors[full[key]])
            rows.append(place | {"id": trial["id"], "embed_cosine": round(min(1.0, cosine), DECIMALS)})
    write_jsonl(output, rows)


def _read(path: Path) -> tuple[dict[str, Any], list[Any]]:
    """Return where a cell stands in the grid, and its trials."""
    header, *trials = read_jsonl(path)
    return {"study": header["cell"]["study"], "arm": header["cell"]["arm"], "group": path.stem}, trials


def encode(texts: Sequence[str], folder: Path, device: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return unit vectors `[n, D]` for texts, from a local sentence-transformers folder."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=str(pick_device(device)), local_files_only=True)
    vectors: np.ndarray[Any, np.dtype[np.float32]] = model.encode(
        list(texts), batch_size=32, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=True
    )
    return vectors
