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
from kvatlas.experiments import cell_file
from kvatlas.files import write_jsonl
from kvatlas.lm.loading import pick_device
from kvatlas.lm.model_config import refuse_code
from kvatlas.lm.tokenizer import LOCAL_WITHOUT_CODE, loading_errors
from kvatlas.lm.weight_headers import read_tensors

DECIMALS = 6


def write(spec: Mapping[str, Any], inputs: Mapping[str, Path], output: Path) -> None:
    """Embed the outputs of recall cells, which are all `inputs` but the folder `inputs["embedder"]`.

    Writes one line {study, arm, group, id, embed_cosine} per trial. The full cache of the same study and group must be
    among the cells; raises KvatlasError otherwise.
    """
    cells = [_outputs(path) for name, path in inputs.items() if name != "embedder"]
    texts = sorted({output for _, outputs in cells for output in outputs.values()})
    vectors = dict(zip(texts, encode(texts, inputs["embedder"], spec.get("device", "auto")), strict=True))
    full = {
        (cell["study"], cell["group"], prompt): text
        for cell, outputs in cells
        if cell["arm"] == "full"
        for prompt, text in outputs.items()
    }
    rows = []
    for cell, outputs in cells:
        for prompt, text in outputs.items():
            key = (cell["study"], cell["group"], prompt)
            if key not in full:
                raise KvatlasError(f"cell {cell}: no full-cache output of prompt {prompt} to compare with")
            cosine = float(vectors[text] @ vectors[full[key]])
            rows.append(cell | {"id": prompt, "embed_cosine": round(min(1.0, cosine), DECIMALS)})
    write_jsonl(output, rows)


def _outputs(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Return which cell of the grid a file is, and its outputs by prompt."""
    cell = cell_file.read(path)
    outputs = {trial["id"]: trial["output"] for trial in cell.trials}
    return {"study": cell.spec["study"], "arm": cell.spec["arm"], "group": path.stem}, outputs


def encode(texts: Sequence[str], folder: Path, device: str) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return unit vectors `[n, D]` for texts, from a local sentence-transformers folder."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from sentence_transformers import SentenceTransformer

    refuse_code(folder, f"model folder {folder}")
    with loading_errors(f"model folder {folder}: the embedder cannot be loaded"):
        model = SentenceTransformer(str(folder), device=str(pick_device(device)), **LOCAL_WITHOUT_CODE)
    _check_weights(model, folder)
    vectors: np.ndarray[Any, np.dtype[np.float32]] = model.encode(
        list(texts), batch_size=32, normalize_embeddings=True, convert_to_numpy=True, show_progress_bar=True
    )
    return vectors


def _check_weights(model: Any, folder: Path) -> None:
    """Raise KvatlasError when a weight of the embedder is not in its file, and so was drawn at random."""
    held = read_tensors(folder / "model.safetensors", f"model folder {folder}")
    prefixes = ("", f"{model[0].auto_model.base_model_prefix}.")
    for name, _ in model[0].auto_model.named_parameters():
        if not any(prefix + name in held for prefix in prefixes):
            raise KvatlasError(f"model folder {folder}: its weights lack {name}, which would be drawn at random")
