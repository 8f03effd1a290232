"""Methods are found by their files, read without importing them, and a bad registration is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvatlas.compression import methods, policies, quantizers
from kvatlas.errors import KvatlasError

POLICY = '@PolicyRegistration("{}", label="A", source="control")\nclass A:\n    pass\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose files are policies too."""
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    return tmp_path


def test_every_method_is_read_from_its_file_and_has_a_text():
    registered = [*methods.policies().values(), *methods.quantizers().values()]
    assert len(registered) >= 27
    for registration in registered:
        assert registration.module.startswith(("kvatlas.compression.policies.", "kvatlas.compression.quantizers."))
        assert registration.summary.endswith(".")
    labels = [registration.label for registration in methods.policies().values()]
    assert len(set(labels)) == len(labels)


def test_every_file_of_the_folders_is_a_method_or_the_base():
    for package, registered in ((policies, methods.policies()), (quantizers, methods.quantizers())):
        files = {path.stem for path in Path(package.__path__[0]).glob("*.py")} - {"__init__", "base"}
        assert files == {registration.module.rpartition(".")[2] for registration in registered.values()}


def test_new_methods_follow_the_published_ones_by_name(folder):
    for name in ("zeta", "alpha"):
        (folder / f"{name}.py").write_text(POLICY.format(name))
    assert list(methods.policies())[-2:] == ["alpha", "zeta"]
    assert next(iter(methods.policies())) == "naive_drop"


def test_one_class_may_have_several_names():
    policies = methods.policies()
    assert policies["attention_sink"].definition == policies["sink_recent"].definition == "SinkRecent"
    assert policies["attention_sink"].label != policies["sink_recent"].label


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (POLICY.format("random"), r"another\.py: 'random' is registered by .*policies\.random too"),
        (POLICY.format("full"), "'full' is registered by kvatlas itself too"),
        ("class A:\n    pass\n", r"another\.py: registers nothing; put @PolicyRegistration"),
        ('@PolicyRegistration(NAME, label="A", source="b")\nclass A: ...', "line 1 needs literal arguments"),
        ('@PolicyRegistration("a", label="A", origin="b")\nclass A: ...', "origin"),
        ('@PolicyRegistration("a", label="A")\nclass A: ...', "source"),
        ("class A(:", "not valid Python"),
    ],
)
def test_a_bad_registration_is_one_line_that_names_the_file(folder, text, message):
    (folder / "another.py").write_text(text)
    with pytest.raises(KvatlasError, match=message) as caught:
        methods.policies()
    assert "\n" not in str(caught.value)


def test_an_unknown_method_is_answered_with_the_known_ones():
    with pytest.raises(KvatlasError, match=r"policy: 'snapkw' is unknown; use one of .*snapkv"):
        methods.find_policy("snapkw")
    with pytest.raises(KvatlasError, match=r"quantizer: 'int3' is unknown; use one of .*int4"):
        methods.find_quantizer("int3")


def run(code: str) -> set[str]:
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(printed.split())


def test_reading_registrations_imports_no_method_and_no_torch():
    modules = run("import sys\nfrom kvatlas.compression import methods\nmethods.policies()\nprint(*sys.modules)")
    assert "torch" not in modules
    assert not {name for name in modules if name.startswith("kvatlas.compression.policies.")}


def test_building_an_arm_imports_its_own_method_and_no_other():
    modules = run(
        "import sys\nfrom kvatlas.compression.build import make_policy, make_store\n"
        "make_policy({'name': 'tova'})\nmake_store('int8')()\nprint(*sys.modules)"
    )
    ours = {name for name in modules if name.startswith(("kvatlas.compression.p", "kvatlas.compression.q"))}
    policy, quantizer = "kvatlas.compression.policies", "kvatlas.compression.quantizers"
    assert ours == {policy, f"{policy}.base", f"{policy}.tova", quantizer, f"{quantizer}.base", f"{quantizer}.integer"}
