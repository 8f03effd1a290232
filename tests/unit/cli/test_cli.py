"""The command: thin, one line for a user's mistake, and a traceback only for a defect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kvatlas.cli import main
from kvatlas.errors import KvatlasError
from kvatlas.grid import config
from kvatlas.pipeline import prefill_files
from kvatlas.tracking import dependencies
from kvatlas.tracking.fingerprint import combine
from tests.support.places import ROOT

RECALL = {"kind": "recall", "study": "needle", "model": "m", "arm": "full", "mode": "aware", "context": 512, "shard": 0}


class Stand(types.ModuleType):
    """A stand-in experiment that records its calls, or raises."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__("stand")
        self.error = error
        self.calls: list[tuple[dict[str, Any], dict[str, Path], Path]] = []

    def write(self, spec: dict[str, Any], inputs: dict[str, Path], output: Path) -> None:
        self.calls.append((dict(spec), dict(inputs), output))
        if self.error is not None:
            raise self.error
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("made")


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")


def stand_in(monkeypatch: pytest.MonkeyPatch, kind: str, error: BaseException | None = None) -> Stand:
    stand = Stand(error)
    monkeypatch.setitem(sys.modules, f"kvatlas.experiments.{kind}", stand)
    return stand


def test_validate_tells_a_mistake_in_one_line_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["validate", "--configfile", "nowhere.yaml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvatlas: error: nowhere.yaml: no such configuration")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["config", "smoke", "thorough", "paper"])
def test_validate_and_plan_accept_the_repository_s_configurations(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main.main(["validate", "--configfile", f"config/{name}.yaml"]) == 0
    assert "valid" in capsys.readouterr().out
    assert main.main(["plan", "--configfile", f"config/{name}.yaml"]) == 0
    out = capsys.readouterr().out
    assert "prefill files:" in out
    assert "are prefilled, once each" in out
    assert re.search(r"GPU hours: about [\d.]+ on one GPU", out)


def test_a_cell_gets_its_spec_and_its_model_as_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = stand_in(monkeypatch, "online_lm")
    monkeypatch.setattr(dependencies, "missing_experiment", lambda kind: None)
    monkeypatch.setattr(dependencies, "cell_code", lambda spec, **_: {"a.py": "1"})
    spec = {"kind": "online_lm", "study": "online_lm", "model": "m"}
    code = combine({"a.py": "1"})
    output = "results/r/cells/online_lm/m/full/online-64-0.jsonl"
    arguments = ["--input", "model=resources/models/m/provenance.json", "text=resources/text/t.txt"]
    assert main.main(["job", "cell", "--spec", json.dumps(spec), "--code", code, *arguments, "--output", output]) == 0
    assert stand.calls == [
        (
            spec,
            {"model": Path("resources/models/m"), "text": Path("resources/text/t.txt")},
            Path(output),
        )
    ]
    assert json.loads(Path(f"results/r/code/{output}.json").read_text()) == {"a.py": "1"}


def test_a_cell_refuses_code_that_changed_since_the_workflow_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["job", "cell", "--spec", json.dumps(RECALL), "--code", "0" * 16, "--output", "o.jsonl"]) == 2
    assert "o.jsonl: the code or its packages changed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried ..."),
        type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_running_out_of_memory_names_the_cell_and_what_to_lower(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in(monkeypatch, "recall", error)
    monkeypatch.setattr(prefill_files, "ensure", lambda manifest, inputs: manifest)
    assert (
        main.main(["job", "cell", "--spec", json.dumps(RECALL), "--input", "prefill=p.json", "--output", "o.jsonl"])
        == 2
    )
    err = capsys.readouterr().err
    assert "cell recall needle m full aware 512 0: out of memory" in err
    assert "studies.needle.seeds_per_shard" in err
    assert err.count("\n") == 1


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, "recall", RuntimeError("a defect"))
    monkeypatch.setattr(prefill_files, "ensure", lambda manifest, inputs: manifest)
    with pytest.raises(RuntimeError, match="a defect"):
        main.main(["job", "cell", "--spec", json.dumps(RECALL), "--input", "prefill=p.json", "--output", "o.jsonl"])


def test_a_kind_that_this_version_lacks_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["job", "cell", "--spec", json.dumps({"kind": "nothing"}), "--output", "o"]) == 2
    assert "module kvatlas.experiments.nothing does not exist" in capsys.readouterr().err


def test_a_released_prefill_is_made_again_and_a_whole_one_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stand = stand_in(monkeypatch, "prefill")
    manifest = tmp_path / "aware-512-0.json"
    inputs = {"model": tmp_path, "prompts": tmp_path / "p.jsonl"}
    prefill_files.build({"kind": "prefill"}, inputs, manifest)
    before = manifest.read_bytes()
    tensors = prefill_files.ensure(manifest, inputs | {"prefill": manifest})
    assert len(stand.calls) == 1
    tensors.write_text("mad3")
    prefill_files.ensure(manifest, inputs)
    assert len(stand.calls) == 2
    assert "is broken; prefilling again" in capsys.readouterr().err
    prefill_files.release(manifest)
    assert [path.name for path in tmp_path.iterdir()] == [manifest.name]
    assert prefill_files.ensure(manifest, inputs).read_text() == "made"
    assert stand.calls[-1] == ({"kind": "prefill"}, inputs, tensors)
    assert manifest.read_bytes() == before


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match=r"gone\.json: no such file"):
        prefill_files.ensure(tmp_path / "gone.json", {})


def test_the_module_and_its_help_work() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvatlas.cli", "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    shown = re.findall(r"^    (\w+) ", done.stdout, flags=re.M)
    for command in ("try", "validate", "plan", "run", "why", "check", "report", "compare", "publish", "plot", "job"):
        assert command in shown
    assert not {"cell", "aggregate", "results", "figure", "pages"} & set(shown)


def test_report_names_the_pages_and_opens_the_explorer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(ROOT)
    configuration = config.load("config/smoke.yaml") | {"run": "shown"}
    monkeypatch.setattr(config, "load", lambda path: configuration)
    monkeypatch.chdir(tmp_path)
    opened: list[str] = []

    def open_once(address: str) -> bool:
        opened.append(address)
        return len(opened) == 1

    monkeypatch.setattr("webbrowser.open", open_once)
    assert main.main(["report"]) == 2
    assert "reports/shown/README.md: no such page; build it with snakemake" in capsys.readouterr().err
    folder = tmp_path / "reports/shown"
    folder.mkdir(parents=True)
    for name in ("README.md", "explorer.html"):
        (folder / name).write_text("")
    assert main.main(["report"]) == 0
    assert capsys.readouterr().out == "reports/shown/README.md\nreports/shown/explorer.html\n"
    assert opened == []
    assert main.main(["report", "--open"]) == 0
    assert opened == [(folder / "explorer.html").as_uri()]
    assert main.main(["report", "--open"]) == 2
    assert "no browser was found" in capsys.readouterr().err


def test_the_command_starts_without_a_model_library_or_a_plotting_library() -> None:
    heavy = {"torch", "transformers", "matplotlib", "snakemake"}
    code = f"import sys, kvatlas.cli.main; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_job_finds_no_answer_on_the_standard_input_of_the_workflow() -> None:
    """`yes | snakemake` answers no question of a library."""
    kept = os.dup(0)
    reading, writing = os.pipe()
    os.write(writing, b"y\n")
    os.close(writing)
    os.dup2(reading, 0)
    try:
        assert main.main(["job", "cell", "--spec", '{"kind": "nothing"}', "--output", "o"]) == 2
        assert os.read(0, 1) == b""
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(reading)
