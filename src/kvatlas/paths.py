"""Where the files of a run lie. Every path is made here and nowhere else.

Knows no configuration; it is apart from `kvatlas.grid.cells` so that experiments can use it without depending on the grid.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

PACKAGE_FOLDER = Path(__file__).resolve().parent
"""This package's own files: sources, templates, schemas."""
SOURCE_ROOT = PACKAGE_FOLDER.parent
SOURCES = "src"
"""Where the repository keeps this package, so that a file has one name whether the package is installed or not."""
MODELS_FILE, TEXTS_FILE, CLAIMS_FILE = "config/models.yaml", "config/texts.yaml", "config/claims.yaml"
PUBLISHED_FOLDER = "config/published"
PROVENANCE = "provenance.json"

# The files of a report, as far as every run has them: each study adds a page, and its figures are those that its results
# hold data for.
DATA_FILES = ("results.json", "timings.json", "config.json", "trials.parquet")
PAGES = ("README.md", "claims.md", "published.md", "samples.md", "cells.md", "model-card.md")
EXPLORER = "explorer.html"
COMPARISON = ("comparison.md", "comparison.json")
"""What `kvatlas compare` writes; a report may have it."""
# Tables of a report that not every run has.
STREAMS, MEASUREMENTS = "streams.parquet", "measurements.parquet"


@cache
def module_file(module: str, root: Path = SOURCE_ROOT) -> Path | None:
    """Return the file of a module of this package, or None when there is no such module."""
    stem = root.joinpath(*module.split("."))
    return next((path for path in (stem / "__init__.py", stem.with_suffix(".py")) if path.is_file()), None)


@cache
def figure_names() -> tuple[str, ...]:
    """Return the figures there are, by number, from their files `reporting/figures/fN_NAME.py`."""
    named = (re.fullmatch(r"f(\d+)_\w+", path.stem) for path in (PACKAGE_FOLDER / "reporting/figures").glob("f*.py"))
    return tuple(match[0] for match in sorted(filter(None, named), key=lambda match: (int(match[1]), match[0])))


def source_name(path: Path, root: Path = SOURCE_ROOT) -> str:
    """Return the repository's name of a file of this package: `src/kvatlas/paths.py`."""
    return f"{SOURCES}/{path.relative_to(root).as_posix()}"


def named_file(name: str, root: Path = SOURCE_ROOT) -> Path:
    """Return the file that the repository's `name` stands for: of this package, or else below the working directory."""
    inside = Path(name)
    return root / inside.relative_to(SOURCES) if inside.parts[:1] == (SOURCES,) else inside


def model_file(model: str) -> str:
    """The file that stands for a fetched model; the model's folder is its parent."""
    return f"resources/models/{model}/{PROVENANCE}"


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

    def verified(self, study: str, model: str, group: str) -> str:
        """The record that a group's cells were complete, current and paired."""
        return f"{self.results}/verified/{study}/{model}/{group}.json"

    def embeddings(self, model: str) -> str:
        """The embedding cosines of one model's outputs."""
        return f"{self.results}/embeddings/{model}.jsonl"

    def table(self, study: str) -> str:
        """The aggregates of a study."""
        return f"{self.results}/tables/{study}.json"

    def highlights(self) -> str:
        """What the run has put into the repository's README."""
        return f"{self.results}/highlights.md"

    def damaged(self, path: str) -> str:
        """Where a file of the run is kept that is no longer as it was written."""
        return f"{self.results}/damaged/{path}"

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
    """The file that says which code made an output of a run; None for files outside results/ and reports/."""
    return _record(output, "code")


def checksum_record(output: str | Path) -> Path | None:
    """The file that keeps the checksum of an output of a run; None for files outside results/ and reports/."""
    return _record(output, "checksums")


def _record(output: str | Path, folder: str) -> Path | None:
    parts = PurePosixPath(output).parts
    known = len(parts) > 2 and parts[0] in ("results", "reports")
    return Path("results", parts[1], folder, f"{PurePosixPath(output)}.json") if known else None
