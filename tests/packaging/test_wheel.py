"""The wheel is whole: installed without the repository, the library does what the tutorial says."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.places import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.M | re.S)
PACKED = ("pyproject.toml", "README.md", "LICENSE", "src")


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment that has the wheel, and what it depends on from this one."""
    work = tmp_path_factory.mktemp("wheel")
    source = work / "source"
    source.mkdir()
    for name in PACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work / "dist"), ".", cwd=source)
    run(sys.executable, "-m", "venv", "--without-pip", str(work / "fresh"), cwd=work)
    python = work / "fresh/bin/python"
    site = Path(run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=work).strip())
    # A folder named so is searched, but its own .pth files are not read: the editable install stays unseen.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (wheel,) = (work / "dist").glob("kvatlas-*.whl")
    run(*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel), cwd=work)
    return python


def test_the_package_comes_from_the_wheel_with_its_schemas_and_templates(installed: Path, tmp_path: Path) -> None:
    code = "import kvatlas; from kvatlas.grid import config; from kvatlas.reporting import environment; "
    code += "environment.markdown().get_template('README.md.j2'); print(kvatlas.__file__, len(config.schema()))"
    path, keys = run(str(installed), "-c", code, cwd=tmp_path).split()
    assert path.startswith(str(installed.parents[1]))
    assert int(keys) > 5


def test_every_file_of_the_package_is_in_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import kvatlas; print(kvatlas.__path__[0])"
    folder = Path(run(str(installed), "-c", code, cwd=tmp_path).strip())
    tracked = run("git", "ls-files", "src/kvatlas", cwd=ROOT).split()
    missing = [name for name in tracked if not (folder / name.removeprefix("src/kvatlas/")).is_file()]
    assert len(tracked) > 100
    assert missing == []


def test_the_tutorial_s_code_runs_outside_the_repository(installed: Path, tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs/tutorial.md").read_text(encoding="utf-8"))
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(code for code, _ in blocks))
    assert run(str(installed), str(script), cwd=tmp_path) == "".join(expected for _, expected in blocks)


def test_the_command_reports_a_missing_configuration_in_one_line(installed: Path, tmp_path: Path) -> None:
    command = (str(installed.with_name("kvatlas")), "validate", "--configfile", "nowhere.yaml")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("kvatlas: error: nowhere.yaml: no such configuration")
    assert done.stderr.count("\n") == 1


def test_the_workflow_runs_from_the_wheel_with_the_fingerprints_of_the_repository(
    installed: Path, tmp_path: Path
) -> None:
    for name in ("workflow", "config", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "Snakefile", tmp_path)
    shutil.copy(ROOT / "environment.yml", tmp_path)
    snakemake = (str(installed), "-m", "snakemake", "--dry-run", "--configfile", "config/smoke.yaml")
    assert "recall" in run(*snakemake, cwd=tmp_path)
    code = "from kvatlas.tracking import dependencies as d; from kvatlas.tracking.fingerprint import combine; "
    code += (
        "print(combine(d.cell_code({'kind': 'recall', 'policy': {'name': 'snapkv'}})), combine(d.step_code('pages')), "
    )
    code += "combine(d.step_code('results')))"
    assert run(str(installed), "-c", code, cwd=tmp_path) == run(sys.executable, "-c", code, cwd=ROOT)
