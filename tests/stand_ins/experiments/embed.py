"""Stand-in: embeddings without an embedder."""

from pathlib import Path

from kvatlas.experiments import cell_file
from kvatlas.files import write_jsonl


def write(spec, inputs, output):
    rows = [
        {"study": trial["study"], "arm": trial["arm"], "group": Path(path).stem, "id": trial["id"], "embed_cosine": 0.5}
        for name, path in inputs.items()
        if name != "embedder"
        for trial in cell_file.read(path).trials
    ]
    write_jsonl(output, rows)
