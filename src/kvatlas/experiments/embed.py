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
    """Embed the outputs of the cells in `spec["cells"]` (study, arm, group, path) with the folder `inputs["embedder"]`.

    Writes one line {study, arm, group, id, embed_cosine} per trial. The full cache of the same study and group must be
    among the cells.
    """
    cells = [(cell, read_jsonl(cell["path"])[1:]) for cell in spec["cells"]]
    texts = sorted({trial["output"] for _, trials in cells for trial in trials})
    vectors = dict(zip(texts, encode(texts, inputs["embedder"], spec.get("device", "auto")), strict=True))
    full = {
        (cell["study"], cell["group"], trial["id"]): trial["output"]
        for cell, trials in cells
        if cell["arm"] == "full"
        for trial in trials
    }
    rows = []
    for cell, trials in cells:
        for trial in trials:
            key = (cell["study"], cell["group"], trial["id"])
            if key not in full:
                raise KvatlasError(
                    f"{cell['path']}: no output of the full cache for prompt {trial['id']} to compare with"
                )
            cosine = float(vectors[trial["output"]] @ vectors[full[key]])
            place = {name: cell[name] for name in ("study", "arm", "group")}
            rows.append(place | {"id": trial["id"], "embed_cosine": round(min(1.0, cosine), DECIMALS)})
    write_jsonl(output, rows)


def encode(texts: Sequence[str], folder: Path, device: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return unit vectors `[n, D]` for texts, from a local sentence-transformers folder."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device=str(pick_device(device)), local_files_only=True)
    vectors: np.ndarray[Any, np.dtype[np.float32]] = model.encode(
        list(texts), batch_size=32, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=True
    )
    return vectors
