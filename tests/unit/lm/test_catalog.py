"""The catalogs of models and texts: what the repository ships is valid, and a mistake is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvatlas.errors import KvatlasError
from kvatlas.lm.catalog import find_model, find_text, load_models, load_texts
from tests.support.places import ROOT

SHA = "0" * 64
LM: dict[str, Any] = {
    "title": "A model",
    "role": "lm",
    "source": "hub",
    "id": "owner/name",
    "revision": "a" * 40,
    "license": "mit",
    "max_positions": 512,
    "shape": {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16},
}
WHEEL: dict[str, Any] = {
    "title": "An embedder",
    "role": "embedder",
    "source": "wheel",
    "package": "some-package",
    "version": "1.0",
    "member": "some_package/model/",
    "sha256": {"config.json": SHA},
    "license": "mit",
}
TEXT: dict[str, Any] = {"title": "A text", "source": "path", "path": "a.txt", "license": "mit"}


def without(entry: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in keys}


def written(folder: Path, catalog: Any) -> Path:
    path = folder / "catalog.yaml"
    path.write_text(catalog if isinstance(catalog, str) else yaml.safe_dump(catalog))
    return path


def test_the_shipped_models_are_valid_and_pinned() -> None:
    models = load_models(ROOT / "config" / "models.yaml")
    assert {"smollm2-135m", "all-minilm-l6-v2"} <= set(models)
    assert [name for name, entry in models.items() if entry["source"] == "path"] == ["qwen2.5-coder-0.5b"]
    assert all(len(entry["revision"]) == 40 for entry in models.values() if entry["source"] == "hub")


def test_the_shipped_texts_are_valid() -> None:
    assert set(load_texts(ROOT / "config" / "texts.yaml")) == {"lee-news", "wikitext-2"}


@pytest.mark.parametrize("file", ["models", "texts"])
def test_the_example_in_the_comment_of_a_shipped_catalog_is_valid(tmp_path: Path, file: str) -> None:
    comment = (ROOT / "config" / f"{file}.yaml").read_text().split("\n\n")[0]
    lines = [line[1:] for line in comment.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.strip() in ("qwen2.5-1.5b-instruct:", "my-book:"))
    indent = len(lines[start]) - len(lines[start].lstrip())
    example = [lines[start], *(line for line in lines[start + 1 :] if line.startswith(" " * (indent + 2)))]
    path = written(tmp_path, "\n".join(line[indent:] for line in example))
    catalog = load_models(path) if file == "models" else load_texts(path)
    assert next(iter(catalog.values()))["source"] == "path"


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (without(LM, "revision"), "m.revision: this key is missing"),
        (without(LM, "title", "role", "shape"), "m.title, m.role: these keys are missing"),
        (without(LM, "id", "revision", "shape"), "m.id, m.revision, m.shape: these keys are missing"),
        (without(LM, "shape"), "m.shape: this key is missing"),
        (LM | {"revision": "main"}, "m.revision: 'main' is not valid; a revision is a full commit hash"),
        (
            LM | {"source": "hob"},
            "m.source: 'hob' is not allowed; did you mean 'hub'?; choose from hub, path",
        ),
        (LM | {"licence": "mit"}, "m.licence: unknown key; did you mean 'license'?"),
        (LM | {"path": "/models"}, "m.path: this key has no meaning with source 'hub' and role 'lm'; remove it"),
        (LM | {"sha256": SHA}, "m.sha256"),
        (
            LM | {"max_positions": 0},
            "m.max_positions: 0 is out of range, it must be at least 1; a whole number of at least 1",
        ),
        (LM | {"shape": {"layers": 2}}, "m.shape.heads, m.shape.kv_heads, m.shape.head_dim: these keys are missing"),
        (WHEEL | {"version": 1.0}, "m.version: 1.0 is not a text; one exact version; quote it"),
        (WHEEL | {"member": "model.gguf"}, "a member folder ends with '/'; a .gguf file needs format: gguf"),
        (WHEEL | {"member": "../model/"}, "m.member: '../model/' is not valid; a path inside the wheel"),
        (WHEEL | {"sha256": {"config.json": "abc"}}, "'abc' is not valid; a sha256 is 64 hexadecimal digits"),
        (WHEEL | {"sha256": {"../evil": SHA}}, "m.sha256"),
        (WHEEL | {"format": "gguf", "member": "a.gguf", "sha256": SHA}, "m.format"),
        (WHEEL | {"shape": LM["shape"]}, "m.shape: this key has no meaning with source 'wheel' and role 'embedder'"),
    ],
)
def test_a_mistake_in_a_model_names_the_key_and_what_is_allowed(
    tmp_path: Path, entry: dict[str, Any], message: str
) -> None:
    path = written(tmp_path, {"m": entry})
    with pytest.raises(KvatlasError) as caught:
        load_models(path)
    assert str(caught.value).startswith(f"{path}: m")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (without(TEXT, "path"), "t.path: this key is missing"),
        (TEXT | {"split": "test"}, "t.split: this key has no meaning with source 'path'"),
        (TEXT | {"source": "hub"}, "t.id, t.revision, t.split, t.column, t.join: these keys are missing"),
    ],
)
def test_a_mistake_in_a_text_names_the_key(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    with pytest.raises(KvatlasError) as caught:
        load_texts(written(tmp_path, {"t": entry}))
    assert message in str(caught.value)


def test_a_valid_entry_of_every_source_is_accepted(tmp_path: Path) -> None:
    gguf = LM | {"source": "wheel", "package": "p", "version": "1.0", "member": "p/m.gguf", "format": "gguf"}
    entries = {
        "hub": LM,
        "path": without(LM, "id", "revision") | {"source": "path", "path": "models/x"},
        "gguf": without(gguf, "id", "revision") | {"sha256": SHA},
        "embedder": WHEEL,
    }
    assert load_models(written(tmp_path, entries)) == entries


def test_a_name_given_twice_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path, yaml.safe_dump({"m": LM}) + yaml.safe_dump({"m": LM}))
    with pytest.raises(KvatlasError, match=r"key 'm' is given twice \(line 14\)"):
        load_models(path)


@pytest.mark.parametrize("content", ["a: [", "", "- 1", "Upper: {}", "m: text"])
def test_a_broken_catalog_names_the_file(tmp_path: Path, content: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(KvatlasError) as caught:
        load_models(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_catalog_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match="no such file"):
        load_models(tmp_path / "models.yaml")


def test_an_unknown_model_lists_the_known_ones_and_the_closest() -> None:
    with pytest.raises(KvatlasError) as caught:
        find_model({"smollm2-135m": LM, "embedder": WHEEL}, "smolm2-135", "lm")
    assert str(caught.value) == (
        "model 'smolm2-135' is not in config/models.yaml; did you mean 'smollm2-135m'?; known: embedder, smollm2-135m"
    )


def test_an_embedder_is_not_taken_for_a_language_model() -> None:
    with pytest.raises(KvatlasError, match=r"has role embedder in config/models.yaml, not lm; with that role: a"):
        find_model({"a": LM, "b": WHEEL}, "b", "lm")


def test_a_known_name_gives_its_entry() -> None:
    assert find_model({"a": LM, "b": WHEEL}, "b", "embedder") is WHEEL
    assert find_text({"t": TEXT}, "t") is TEXT
    with pytest.raises(KvatlasError, match=r"text 'x' is not in config/texts.yaml; known: t"):
        find_text({"t": TEXT}, "x")


def test_the_catalog_and_the_sources_are_imported_without_torch_or_transformers() -> None:
    code = (
        "import sys, kvatlas.lm.catalog, kvatlas.lm.sources; "
        "print([m for m in ('torch', 'transformers', 'datasets', 'huggingface_hub') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
