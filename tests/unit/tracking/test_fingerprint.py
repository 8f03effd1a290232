"""A fingerprint changes with what code means, for exactly the cells that use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvatlas.compression import policies
from kvatlas.errors import KvatlasError
from kvatlas.grid import policy_parameters
from kvatlas.grid.studies import all_studies
from kvatlas.paths import PACKAGE_FOLDER, figure_names, module_file
from kvatlas.tracking import dependencies, fingerprint
from kvatlas.tracking.fingerprint import combine, differences, explain

FILES = {
    "kvatlas/__init__.py": '"""Package."""\n__version__ = "1"\n',
    "kvatlas/top.py": (
        '"""Top."""\nfrom kvatlas.lib import tool\nfrom . import plain\n\n'
        "def work(x):\n    'Doc.'\n    from kvatlas.late import thing\n    return tool.f(thing(x))\n"
    ),
    "kvatlas/plain.py": "VALUE = 1\n",
    "kvatlas/late.py": "def thing(x):\n    return x\n",
    "kvatlas/unused.py": "VALUE = 2\n",
    "kvatlas/lib/__init__.py": "",
    "kvatlas/lib/tool.py": "import json\nfrom ..relative import other\n\n\ndef f(x):\n    return other(x)\n",
    "kvatlas/relative.py": "def other(x):\n    return x + 1\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "src"


def parts(tree: Path, *modules: str) -> dict[str, str]:
    for cached in (
        fingerprint.closure,
        module_file,
        fingerprint._imports,
        fingerprint._tree,
        fingerprint._code_hash,
    ):
        cached.cache_clear()
    return explain(modules or ("kvatlas.top",), root=tree)


def edit(tree: Path, name: str, old: str, new: str) -> None:
    path = tree / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_the_closure_follows_absolute_relative_and_late_imports_and_packages(tree: Path) -> None:
    assert set(parts(tree)) == {
        f"src/kvatlas/{name}.py"
        for name in ("__init__", "top", "plain", "late", "lib/__init__", "lib/tool", "relative")
    }


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kvatlas/top.py", '"""Top."""', '"""Another docstring."""'),
        ("kvatlas/top.py", "    'Doc.'\n", ""),
        ("kvatlas/relative.py", "x + 1", "x   +  1  # a comment"),
        ("kvatlas/relative.py", "\n    return", "\n\n    return"),
        ("kvatlas/__init__.py", '"1"', '"2"'),
        ("kvatlas/unused.py", "2", "3"),
    ],
)
def test_comments_docstrings_format_version_and_unused_modules_do_not_count(
    tree: Path, name: str, old: str, new: str
) -> None:
    before = combine(parts(tree))
    edit(tree, name, old, new)
    assert combine(parts(tree)) == before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("kvatlas/top.py", "tool.f(thing(x))", "thing(tool.f(x))"),
        ("kvatlas/relative.py", "x + 1", "x + 2"),
        ("kvatlas/relative.py", "x + 1", "x - 1"),
        ("kvatlas/plain.py", "1", "'1'"),
        ("kvatlas/lib/__init__.py", "", "SET = True\n"),
        ("kvatlas/late.py", "return x", "return None"),
        ("kvatlas/late.py", "def thing(x)", "def thing(x, y=0)"),
    ],
)
def test_code_counts_and_the_changed_file_is_named(tree: Path, name: str, old: str, new: str) -> None:
    before = parts(tree)
    edit(tree, name, old, new)
    after = parts(tree)
    assert combine(after) != combine(before)
    assert differences(before, after) == [f"src/{name} changed"]


def test_a_module_that_does_not_exist_is_named(tree: Path) -> None:
    with pytest.raises(KvatlasError, match=r"module kvatlas\.nothing does not exist"):
        parts(tree, "kvatlas.nothing")


@pytest.mark.parametrize("name", ["config/claims.yaml", "src/kvatlas/page.md"])
def test_data_files_count_by_their_bytes(tree: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.parent)
    file = tree.parent / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("one")
    before = explain((), [name], root=tree)
    file.write_text("two")
    assert differences(before, explain((), [name], root=tree)) == [f"{name} changed"]
    file.unlink()
    with pytest.raises(KvatlasError, match=f"{name}: no such file"):
        explain((), [name], root=tree)


def test_a_package_that_is_installed_elsewhere_has_the_repository_s_names(tree: Path) -> None:
    before = parts(tree)
    installed = tree.rename(tree.parent / "site-packages")
    assert parts(installed) == before


def test_differences_tell_new_and_dropped_parts_and_versions() -> None:
    lines = differences({"a.py": "1", "package torch": "2.12"}, {"b.py": "1", "package torch": "2.13"})
    assert lines == ["a.py is no longer used", "b.py is new", "package torch changed (2.12 -> 2.13)"]


def spec(policy: str, quantizer: str = "none") -> dict[str, object]:
    return {"kind": "recall", "policy": {"name": policy}, "quantizer": quantizer}


def test_an_arm_depends_on_its_own_policy_and_on_no_other() -> None:
    random, snapkv = dependencies.cell_code(spec("random")), dependencies.cell_code(spec("snapkv"))
    folder = "src/kvatlas/compression/policies"
    assert f"{folder}/random.py" in random
    assert f"{folder}/snapkv.py" not in random
    assert f"{folder}/snapkv.py" in snapkv
    assert f"{folder}/random.py" not in snapkv
    clustering = dependencies.cell_code(spec("snapkv_emeans"))
    assert f"{folder}/snapkv.py" not in clustering
    full = dependencies.cell_code(spec("full"))
    assert {name for name in full if name.startswith(folder)} <= {f"{folder}/__init__.py", f"{folder}/base.py"}


def test_an_arm_depends_on_how_methods_are_found_and_built_and_on_its_own_quantizer() -> None:
    compression = "src/kvatlas/compression"
    files = dependencies.cell_code(spec("random", "int8"))
    assert {f"{compression}/{name}.py" for name in ("build", "methods", "quantizers/integer")} <= set(files)
    assert f"{compression}/quantizers/cast.py" not in files


def test_a_policy_registered_and_not_used_changes_no_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dependencies.cell_code(spec("random", "int8"))
    (tmp_path / "another.py").write_text(
        '@PolicyRegistration("another", label="Another", source="control")\nclass Another:\n    pass\n'
    )
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    assert "another" in policy_parameters.known_policies()
    assert dependencies.cell_code(spec("random", "int8")) == before


def test_a_label_is_no_code_of_a_cell_and_what_a_registration_decides_is(tree: Path) -> None:
    (tree / "kvatlas/method.py").write_text(
        '@PolicyRegistration("a", label="A", order=3, bits=4)\nclass A:\n    pass\n'
    )
    before = combine(parts(tree, "kvatlas.method"))
    edit(tree, "kvatlas/method.py", 'label="A", order=3', 'label="B", order=4')
    assert combine(parts(tree, "kvatlas.method")) == before
    edit(tree, "kvatlas/method.py", "bits=4", "bits=8")
    assert combine(parts(tree, "kvatlas.method")) != before


def test_pages_and_figures_follow_the_labels_of_the_methods_that_a_run_has() -> None:
    config = {"models": ["m"], "studies": {"needle": {"modes": {"aware": [{"methods": ["full", "snapkv"]}]}}}}
    for step, subject in (("pages", ""), ("figure", "f1_pareto"), ("explorer", ""), ("highlights", "")):
        names = [name for name in dependencies.step_code(step, subject, config) if name.startswith(("label", "title"))]
        assert names == ["label snapkv", "title m"]
    assert not [name for name in dependencies.step_code("results", config=config) if name.startswith("label")]


ABOVE_A_CELL = ("grid", "tracking", "pipeline", "analysis", "reporting", "cli")


def test_all_arms_depend_on_the_cache_and_none_on_the_grid_or_the_commands() -> None:
    assert all((PACKAGE_FOLDER / package).is_dir() for package in ABOVE_A_CELL)
    for policy in ("full", "random", "snapkv_emeans"):
        files = dependencies.cell_code(spec(policy))
        assert "src/kvatlas/lm/cache.py" in files
        assert [name for name in files if name.startswith(tuple(f"src/kvatlas/{p}/" for p in ABOVE_A_CELL))] == []


def test_prompts_depend_on_their_own_task_and_on_no_model() -> None:
    needle = dependencies.cell_code({"kind": "prompts", "task": "needle"})
    assert "src/kvatlas/tasks/needle.py" in needle
    assert "src/kvatlas/tasks/passkey.py" not in needle
    assert "src/kvatlas/lm/cache.py" not in needle


def test_a_table_depends_on_its_own_study_and_the_pages_on_all() -> None:
    needle = dependencies.step_code("aggregate", "needle")
    assert "src/kvatlas/grid/studies/needle.py" in needle
    assert "src/kvatlas/analysis/studies/online_lm.py" not in needle
    sections = {f"src/kvatlas/reporting/sections/{study}.py" for study in all_studies()}
    assert sections <= set(dependencies.step_code("pages"))


def test_versions_count_unless_they_are_not_tracked() -> None:
    assert "package torch" in dependencies.cell_code(spec("random"))
    assert not [n for n in dependencies.cell_code(spec("random"), track_versions=False) if n.startswith("package ")]


def test_a_figure_depends_on_its_own_module_and_on_no_other_figure() -> None:
    names = figure_names()
    assert len(names) > 1
    for name in names:
        files = dependencies.step_code("figure", name)
        others = {f"src/kvatlas/reporting/figures/{other}.py" for other in names if other != name}
        assert not others & set(files)


def test_pages_depend_on_their_templates() -> None:
    assert any(name.endswith("README.md.j2") for name in dependencies.step_code("pages"))


def test_how_a_model_is_described_does_not_refetch_it() -> None:
    entry = {"source": "wheel", "version": "1", "format": "gguf", "title": "A"}
    before = combine(dependencies.fetch_code("model", entry))
    assert combine(dependencies.fetch_code("model", entry | {"title": "B", "max_positions": 4})) == before
    assert combine(dependencies.fetch_code("model", entry | {"version": "2"})) != before
