"""Write docs/benchmarks.md from what was measured: `python -m benchmarks.report`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.common import FOLDER

PAGE = Path("docs/benchmarks.md")
HEAD = """\
# Benchmarks

Made by `python -m benchmarks.report` from `benchmarks/measured/*.json`; each table names the command that measured it.
Wall times depend on what else a machine does (its load average is given); CPU seconds hardly do.
"""
TITLES = {
    "scale": ("Dry run and job selection of large grids", "python -m benchmarks.scale"),
    "startup": ("What a cell costs before it works", "python -m benchmarks.startup"),
    "rerun": ("Reruns after an edit", "python -m benchmarks.rerun"),
    "statistics_memory": ("Memory of attention statistics", "python -m benchmarks.statistics_memory"),
    "packed_decode": (
        "Decoding from packed caches",
        "python -m benchmarks.packed_decode --model resources/models/smollm2-135m",
    ),
    "decode": (
        "Decoding with the full cache",
        "python -m benchmarks.decode --model resources/models/smollm2-135m",
    ),
    "compress": (
        "Bringing a cache to its budget",
        "python -m benchmarks.compress --model resources/models/smollm2-135m",
    ),
    "kvpress_grid": ("The same grid by kvpress", "python -m benchmarks.kvpress_grid"),
}

READING = {
    "scale": "Selection is Snakemake's own work on a run in which every job is a touch.",
    "startup": (
        "Nearly all of a start is the import of torch and transformers. So a cell is a batch of prompts, the cells of a "
        "local run are forks of one process that has imported them (`fork`), and the jobs that need no model ("
        "verifying, tables, figures, pages) import neither. `start` is the wall time until the model is loaded."
    ),
    "statistics_memory": "Statistics are summed in chunks of queries, so they grow with the context and not with its square.",
    "packed_decode": (
        "Codes are decoded to floats for every read and no low-precision kernel is used, so a packed cache saves bytes and "
        "costs time: `time ratio` is the median over paired rounds of the time per token over that of the unquantized cache. "
        "`read peak` is what reading holds at most beside the cache: a layer at a time, never all layers."
    ),
    "decode": (
        "New slots are written behind those that are there, into room of an eighth of the cache; the first step makes that "
        "room and copies the cache once. `time ratio` is the median over paired rounds of a step's time over that of the "
        "growing cache: above 1 is slower than kvatlas."
    ),
    "compress": (
        "Eviction copies the slots that stay; clustering forms the distances of all slots to all centroids, a few times. "
        "`time ratio` is the median over paired rounds of a method's time over that of the first."
    ),
    "kvpress_grid": "kvatlas prefills once for all arms, and decodes all prompts as one batch.",
}


def section(name: str) -> str:
    """Render one benchmark, or say that it was not measured."""
    title, command = TITLES[name]
    path = FOLDER / f"{name}.json"
    lines = [f"## {title}", "", " ".join([f"`{command}`.", READING.get(name, "")]).strip()]
    if not path.is_file():
        return "\n".join([*lines, "", "Not measured yet."])
    record = json.loads(path.read_text(encoding="utf-8"))
    machine = record.pop("machine")
    rows = record.pop("rows")
    facts = "; ".join(f"{key.replace('_', ' ')}: {value}" for key, value in sorted(record.items()))
    where = f"{machine['cores']} cores, Python {machine['python']}, load average {machine['load_average']}."
    return "\n".join([*lines, "", f"{facts}. {where}" if facts else where, "", *table(rows)])


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Render rows as Markdown; columns in the order of their first appearance, words before numbers."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    keys.sort(key=lambda key: not any(isinstance(row.get(key), str) for row in rows))
    head = [
        key.replace("_seconds", " (s)").replace("cpu", "CPU").replace("_mib", " (MiB)").replace("_", " ")
        for key in keys
    ]
    body = [[format(row.get(key, "")) for key in keys] for row in rows]
    return [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(keys), *body)]


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n\n".join([HEAD.strip(), *map(section, TITLES)]) + "\n", encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
