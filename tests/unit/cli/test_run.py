"""One experiment without the workflow: the command line becomes a validated configuration, cells, a table, pictures."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvatlas.cli import experiments, look, main, run
from kvatlas.paths import figure_names
from kvatlas.pipeline.local_run import LocalRun
from tests.support.places import ROOT
from tests.support.tiny_models import SENTENCES, make_model_dir


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with catalogs that name a tiny model and a short text by their paths."""
    make_model_dir(tmp_path / "tiny", "qwen2", heads=6, kv_heads=2)
    (tmp_path / "text.txt").write_text(" ".join(SENTENCES * 6), encoding="utf-8")
    shutil.copytree(ROOT / "config", tmp_path / "config")
    model = {
        "title": "Tiny", "role": "lm", "source": "path", "path": str(tmp_path / "tiny"), "license": "apache-2.0",
        "max_positions": 4096, "shape": {"layers": 2, "heads": 6, "kv_heads": 2, "head_dim": 16},
    }  # fmt: skip
    text = {"title": "Text", "source": "path", "path": str(tmp_path / "text.txt"), "license": "public domain"}
    for name, entry, file in (("tiny", model, "models"), ("words", text, "texts")):
        path = tmp_path / "config" / f"{file}.yaml"
        path.write_text(f"{path.read_text(encoding='utf-8')}\n{name}: {json.dumps(entry)}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMON = ["--model", "tiny", "--text", "words", "--device", "cpu", "--dtype", "fp32"]


def test_online_lm_runs_prints_a_table_and_plots(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tokens", "160", "--block", "8", "--budgets", "40", "--n-sinks", "2", "--n-recent", "8"]
    more = ["--methods", "sink_recent", "keydiff", "snapkv:kernel=1", "--protocols", "online", "single"]
    assert main.main(["run", "online-lm", *COMMON, *arguments, *more]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("Method")
    assert "snapkv_kernel_1-40slots" in out
    assert "2 sinks + 8 recent protected" in out
    results = json.loads(Path("results/single/results.json").read_text(encoding="utf-8"))
    assert results["studies"]["online_lm"]["checks"][0]["identical_before_binding"]
    assert main.main(["plot", "online-lm", "--output", "pictures"]) == 0
    written = capsys.readouterr().out.split()
    assert written == [
        f"pictures/{name}.{kind}" for name in ("f5_online_lm", "f7_perplexity_protocols") for kind in ("png", "svg")
    ]
    assert all(Path(path).stat().st_size > 10_000 for path in written)


def test_passkey_runs_with_a_chunked_prefill(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--context", "200", "--depths", "50", "--block", "64", "--budgets", "50%", "--n-recent", "8"]
    assert (
        main.main(["run", "passkey", *COMMON, *arguments, "--methods", "keydiff", "random", "--new-tokens", "3"]) == 0
    )
    out = capsys.readouterr().out
    assert "keydiff-50pct" in out
    assert "noise" in out


def test_attention_loss_adds_to_the_results_of_the_same_run(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--context", "40", "--prompts", "2", "--queries", "2", "--methods", "l2norm", "random"]
    assert main.main(["run", "attention-loss", *COMMON, *arguments]) == 0
    assert "L2Compress" in capsys.readouterr().out
    assert main.main(["plot", "attention-loss"]) == 0
    assert Path("results/single/f8_attention_loss.png").is_file()
    assert main.main(["plot", "online-lm"]) == 2
    assert "holds no online-lm results" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("study", "arguments"),
    [
        (
            "needle",
            ["--context", "200", "--depths", "50", "--n-recent", "8", "--methods", "random", "--new-tokens", "3"],
        ),
        ("task-suite", ["--context", "300", "--instances", "1", "--n-recent", "8", "--methods", "random"]),
        ("quantizer-error", ["--context", "64", "--prompts", "2", "--quantizers", "int8"]),
    ],
)
def test_every_study_runs_and_a_second_call_keeps_its_cells(
    study: str, arguments: list[str], repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["run", study, *COMMON, *arguments]) == 0
    first = capsys.readouterr()
    assert re.search(r"cell 1 of \d+: ", first.err)
    assert main.main(["run", study, *COMMON, *arguments]) == 0
    second = capsys.readouterr()
    assert second.out == first.out
    assert "cell 1" not in second.err


def test_a_folder_runs_by_its_path_from_anywhere(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "elsewhere").mkdir()
    monkeypatch.chdir(repository / "elsewhere")
    arguments = ["--context", "200", "--depths", "50", "--n-recent", "8", "--methods", "random", "--new-tokens", "3"]
    assert main.main(["run", "needle", "--model", "../tiny", *arguments]) == 0
    assert "random-4x" in capsys.readouterr().out
    assert main.main(["run", "needle", "--model", "nothing", *arguments]) == 2
    assert "model 'nothing': no folder, no Hub id" in capsys.readouterr().err


LOOK = ["--context", "160", "--minutes", "0", "--methods", "sink_recent", "random"]


def test_try_makes_a_table_and_a_page_and_goes_on_where_it_was(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["try", "tiny", *LOOK]) == 0
    first = capsys.readouterr()
    assert re.search(r"^Random 4x .* descriptive", first.out, flags=re.M)
    assert "in 1 haystack;" in first.out
    page = Path("kvatlas-try/tiny/README.md")
    assert "| Full cache, int8 |" in page.read_text()
    assert not list(Path("kvatlas-try/tiny").rglob("prefill/**/*.safetensors"))
    monkeypatch.setattr(look, "ROUNDS", 2)
    assert main.main(["try", "tiny", *LOOK[:3], "5", *LOOK[4:]]) == 0
    second = capsys.readouterr()
    assert "round 1, " not in second.err
    assert "round 2, 1 of " in second.err
    assert "in 2 haystacks;" in second.out


def test_a_stopped_try_keeps_its_table(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: LocalRun, cells: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalRun, "release", interrupted)
    assert main.main(["try", str(repository / "tiny"), *LOOK, "--output", "out"]) == 2
    assert "no round was finished" in capsys.readouterr().err
    monkeypatch.undo()
    monkeypatch.chdir(repository)
    assert main.main(["try", str(repository / "tiny"), *LOOK, "--output", "out"]) == 0
    assert "round 1, " not in capsys.readouterr().err
    assert Path("out/README.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinny"], "model 'tinny': no folder"),
        (["tiny", "--ratio", "much"], "'much' is not"),
        (["tiny", "--methods", "snapvk"], "'snapvk' is unknown"),
        (["tiny", "--context", "30"], "context"),
    ],
)
def test_a_mistake_in_try_is_one_line(
    arguments: list[str], message: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["try", *arguments, "--minutes", "0"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["online-lm", "--methods", "snapvk"], "'snapvk' is unknown; did you mean 'snapkv'?"),
        (["online-lm", "--budgets", "lots"], "'lots' is not 4x, 50%"),
        (["passkey", "--methods", "snapkv:windows=3"], "has no such parameter; did you mean 'window'?"),
        (["attention-loss", "--model", "tinny"], "'tinny'"),
    ],
)
def test_mistakes_are_told_as_in_a_configuration(
    arguments: list[str], message: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("keydiff", ("keydiff", {})),
        (
            "snapkv:window=8,pooling=max",
            ("snapkv_window_8_pooling_max", {"policy": "snapkv", "window": 8, "pooling": "max"}),
        ),
        ("streaming_llm:reindex=true", ("streaming_llm_reindex_true", {"policy": "streaming_llm", "reindex": True})),
    ],
)
def test_methods_are_read_with_their_parameters(text: str, expected: tuple[str, dict[str, Any]]) -> None:
    assert experiments.method(text) == expected


def test_every_figure_that_plot_offers_exists() -> None:
    assert {name for names in run.FIGURES.values() for name in names} <= set(figure_names())


@pytest.mark.parametrize(
    "words", [["run", "online-lm"], ["run", "passkey"], ["run", "attention-loss"], ["plot", "online-lm"]]
)
def test_help_tells_defaults_and_an_example(words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvatlas.cli", *words, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "default" in done.stdout
    if words[0] == "run":
        assert f"kvatlas {' '.join(words)} " in done.stdout
        assert "example:" in done.stdout
