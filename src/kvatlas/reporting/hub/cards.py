"""Cards for the Hub: the dataset card's YAML front matter, the model-index block, and a strict check of
both.

Nothing checks a card offline, so this module does: pinned lists of licences and sizes, files that
exist, YAML without duplicate keys. It makes no network calls and knows no templates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kvatlas.errors import KvatlasError
from kvatlas.reporting import labels
from kvatlas.schemas import reader
from kvatlas.terminal import visible

# Identifiers that the Hub accepts; a pinned subset is enough for what this project may use.
LICENSES = frozenset(
    """
    apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bsd bsd-2-clause bsd-3-clause cc
    cc0-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-4.0 cc-by-nd-4.0
    cc-by-nc-nd-4.0 cc-by-nc-sa-4.0 cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 wtfpl
    afl-3.0 artistic-2.0 bsl-1.0 ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl
    lgpl-2.1 lgpl-3.0 isc lppl-1.3c ms-pl mpl-2.0 odc-by odbl ofl-1.1 osl-3.0 pddl ncsa unlicense zlib
    unknown other
    """.split()  # noqa: SIM905
)
_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
    (100_000_000, "10M<n<100M"),
    (1_000_000_000, "100M<n<1B"),
)
SIZE_CATEGORIES = frozenset(name for _, name in _SIZES) | {"1B<n<10B", "n>1T"}
TASK_CATEGORIES = frozenset({"text-generation", "question-answering", "summarization", "text-retrieval", "other"})
TAGS = (
    "kv-cache",
    "kv-cache-compression",
    "long-context",
    "llm-inference",
    "needle-in-a-haystack",
    "benchmark",
)
_REQUIRED = ("license", "language", "pretty_name", "tags", "size_categories", "task_categories", "configs")


def size_category(rows: int) -> str:
    """Return the Hub's size category of a dataset of `rows` rows."""
    return next((name for bound, name in _SIZES if rows < bound), "1B<n<10B")


def front_matter(title: str, models: Sequence[str], tables: Mapping[str, int]) -> dict[str, Any]:
    """Make the dataset card's front matter.

    `tables` maps a parquet file of the folder to its number of rows; each becomes a configuration
    named after the file, `trials` first, because the Hub's viewer opens the first one.
    """
    files = sorted(tables, key=lambda name: (name != "trials.parquet", name))
    configs = [
        {
            "config_name": Path(name).stem,
            "data_files": [{"split": "test", "path": name}],
            "default": index == 0,
        }
        for index, name in enumerate(files)
    ]
    for config in configs[1:]:
        del config["default"]
    return {
        "license": "apache-2.0",
        "language": ["en"],
        "pretty_name": title,
        "tags": [*TAGS, *models],
        "size_categories": [size_category(sum(tables.values()))],
        "task_categories": ["text-generation", "question-answering"],
        "configs": configs,
    }


def dump(front: Mapping[str, Any], *, rulers: bool = True) -> str:
    """Write front matter, between its two rulers unless it is a part of one; only plain YAML types are
    allowed. Characters without an appearance are written as their code points.
    """
    body = yaml.safe_dump(
        _visible(dict(front)), sort_keys=False, allow_unicode=True, default_flow_style=None, width=10_000
    )
    return f"---\n{body}---\n" if rulers else body


def _visible(value: Any) -> Any:
    """Make every text of nested values visible, keys included."""
    if isinstance(value, Mapping):
        return {_visible(key): _visible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_visible(item) for item in value]
    return visible(value, newlines=True) if isinstance(value, str) else value


def parse(card: str) -> dict[str, Any]:
    """Read a card's front matter strictly. Raises KvatlasError for missing rulers, bad YAML or a key given
    twice.
    """
    if not card.startswith("---\n") or "\n---\n" not in card[3:]:
        raise KvatlasError("card: no front matter between two '---' lines at the top; render the pages again")
    body = card[4:].split("\n---\n", 1)[0]
    front = reader.parse(body, "card: front matter", first_line=2)
    if not isinstance(front, dict):
        raise KvatlasError("card: front matter is not a mapping of keys to values; render the pages again")
    return front


def validate(card: str, folder: Path, *, rows: int | None = None) -> dict[str, Any]:
    """Check a dataset card against the pinned lists and the files in `folder`; return its front matter.

    With `rows`, the size category must be that number's. Raises KvatlasError with the first problem.
    """
    front = parse(card)
    missing = [key for key in _REQUIRED if not front.get(key)]
    if missing:
        raise KvatlasError(f"card: {', '.join(missing)} missing from the front matter")
    _allowed("license", [front["license"]], LICENSES)
    _allowed("size_categories", front["size_categories"], SIZE_CATEGORIES)
    _allowed("task_categories", front["task_categories"], TASK_CATEGORIES)
    for key in ("language", "tags"):
        if not isinstance(front[key], list) or not all(isinstance(item, str) and item for item in front[key]):
            raise KvatlasError(f"card: {key} must be a list of words")
    if rows is not None and front["size_categories"] != [size_category(rows)]:
        raise KvatlasError(f"card: size_categories must be {size_category(rows)} for {rows} rows")
    _check_configs(front["configs"], folder)
    return front


def _allowed(key: str, values: Any, allowed: frozenset[str]) -> None:
    if not isinstance(values, list):
        raise KvatlasError(f"card: {key} must be a list")
    for value in values:
        if not isinstance(value, str) or value not in allowed:
            raise KvatlasError(f"card: {key} '{value}' is not one that the Hub knows")


def _check_configs(configs: Any, folder: Path) -> None:
    names: list[str] = []
    present = {path.name for path in folder.iterdir() if path.is_file()}
    if not isinstance(configs, list):
        raise KvatlasError("card: configs must be a list")
    for config in configs:
        name = config.get("config_name") if isinstance(config, dict) else None
        if not name or not isinstance(name, str):
            raise KvatlasError("card: every entry of configs needs a config_name")
        if name in names:
            raise KvatlasError(f"card: config_name '{name}' is used twice")
        names.append(name)
        files = config.get("data_files") or [{}]
        for file in files if isinstance(files, list) else [files]:
            path = file.get("path") if isinstance(file, dict) else file
            if not isinstance(path, str) or path not in present:
                raise KvatlasError(f"card: configs.{name}: data file '{path}' does not exist in {folder}")
    if len([config for config in configs if config.get("default")]) > 1:
        raise KvatlasError("card: only one entry of configs can be the default")


def model_index(results: Mapping[str, Any], model: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Make the `model-index` entry of one model's card: of every study and mode the full cache, and the arm that recalls most
    at each budget.

    Values are shares and perplexities; arms whose task failed its gate are left out. `config` is the report's config.json:
    the model goes by its name on the Hub, the data by the repository where the report is published.
    """
    config = config or {}
    repository = ((config.get("config") or {}).get("publish") or {}).get("repo_id")
    entries = []
    for study, section in sorted((results.get("studies") or {}).items()):
        rows = [row for row in (section or {}).get("rows") or [] if row.get("model") == model]
        for row in _headlines(rows):
            metrics = [
                {"type": kind, "name": name, "value": round(float(row[key]), 6)}
                for key, kind, name in (
                    ("recall", "recall", "Recall"),
                    ("ref_ppl", "perplexity", "Reference perplexity"),
                )
                if labels.known(row.get(key))
            ]
            dataset = {
                "name": f"kvatlas {study}",
                "type": repository or f"kvatlas-{study}",
                "config": "trials",
                "split": "test",
            }
            task = {
                "type": "text-generation",
                "name": f"{labels.arm_label(row)}, {labels.mode_label(str(row['mode']))}",
            }
            entries.append({"task": task, "dataset": dataset, "metrics": metrics})
    return {"model-index": [{"name": _hub_name(model, config), "results": entries}]} if entries else {}


def _headlines(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Choose of every mode the full cache and the arm with most recall at each budget, ties by size."""
    compared = [row for row in rows if labels.known(row.get("recall")) and row.get("gate_passed") is not False]
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in sorted(compared, key=lambda row: (-row["recall"], row.get("resident_bf16_mib") or 0.0, str(row["arm"]))):
        if row.get("mode") != "no_context" and (row["budget"] != "none" or row["arm"] == "full"):
            best.setdefault((str(row["mode"]), str(row["budget"])), row)
    return sorted(best.values(), key=lambda row: (str(row["mode"]), labels.budget_key(str(row["budget"]))))


def _hub_name(model: str, config: Mapping[str, Any]) -> str:
    """Return the model's name on the Hub as its provenance has it, or its title."""
    origin = ((config.get("models") or {}).get(model) or {}).get("origin") or {}
    return str(origin.get("upstream") or origin.get("id") or labels.model_label(model))
