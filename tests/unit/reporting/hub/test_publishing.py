"""Publishing, end to end: the real command and the real Hub client against a Hub on the loopback interface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kvatlas.analysis.trials import write_parquet
from kvatlas.cli.main import main
from kvatlas.errors import KvatlasError
from kvatlas.paths import PAGES
from kvatlas.reporting.hub import cards
from kvatlas.reporting.hub.publishing import collect, describe, strays
from tests.faults.publish_kills import kill_publishing
from tests.support import hostile_strings, synthetic
from tests.support.dataset_hub import TOKEN, DatasetHub, Repository
from tests.support.places import ROOT

REPO = "me/kv-cache-report"
REST = (
    *("results.json", "timings.json", "config.json"),
    *(name for name in PAGES if name != "README.md"),
    "explorer.html",
)
TRIALS = synthetic.recall_trials(arms=synthetic.ARMS[:3], modes=("aware",), contexts=(512,), seeds=2)


def write_report(folder: Path) -> Path:
    (folder / "figures").mkdir(parents=True)
    write_parquet(TRIALS, folder / "trials.parquet")
    front = cards.front_matter("Report", ["smollm2-135m"], {"trials.parquet": len(TRIALS)})
    (folder / "README.md").write_text(cards.dump(front) + "\n# Report\n", encoding="utf-8")
    for name in REST:
        (folder / name).write_text('{"schema": 1}\n')
    (folder / "figures" / "f1_pareto.svg").write_text("<svg/>\n")
    (folder / ".hidden").write_text("not ours to publish")
    (folder / "samples.md.1.part").write_text("half")
    return folder


PUBLISHED = {"README.md", "figures/f1_pareto.svg", "trials.parquet", *REST}


@dataclass
class Publisher:
    """Runs the command on one report with the login and the Hub of the test."""

    report: Path
    home: Path
    variables: dict[str, str] = field(default_factory=dict)

    def run(self, code: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
        environment = kept | {"HF_HOME": str(self.home), "HF_HUB_DISABLE_XET": "1"} | self.variables | variables
        return subprocess.run(
            [sys.executable, *code], cwd=ROOT, env=environment, text=True, capture_output=True, check=False, timeout=120
        )

    def publish(self, *arguments: str, repo: str = REPO, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["-m", "kvatlas.cli", "publish", "--folder", str(self.report), "--repo-id", repo, *arguments]
        done = self.run(command, **variables)
        assert not any(secret in done.stdout + done.stderr for secret in (TOKEN, "hf_wrong_token"))
        return done

    def refused(self, *arguments: str, repo: str = REPO, **variables: str) -> str:
        done = self.publish(*arguments, repo=repo, **variables)
        assert done.returncode == 2, done.stdout + done.stderr
        lines = [line for line in done.stderr.splitlines() if "kvatlas: error: " in line]
        assert "Traceback" not in done.stderr
        assert len(lines) == 1, done.stderr
        return lines[0].partition("kvatlas: error: ")[2]


@pytest.fixture
def hub() -> Iterator[DatasetHub]:
    with DatasetHub() as hub:
        yield hub


@pytest.fixture
def publisher(hub: DatasetHub, tmp_path: Path) -> Publisher:
    variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    return Publisher(write_report(tmp_path / "report"), tmp_path / "hf", variables)


def test_the_report_arrives_whole_in_one_commit_and_loads_as_a_typed_dataset(
    hub: DatasetHub, publisher: Publisher
) -> None:
    done = publisher.publish()
    assert done.returncode == 0, done.stderr
    repository = hub.repositories[REPO]
    assert not repository.private
    assert len(repository.trees) == 2  # the Hub's own first commit, and ours
    assert set(repository.tree) == PUBLISHED | {".gitattributes"}
    for path in PUBLISHED:
        assert repository.tree[path] == (publisher.report / path).read_bytes()
    assert "12 files sent" in done.stdout
    code = (
        "import sys, json, datasets; table = datasets.load_dataset(sys.argv[1], 'trials', split='test'); "
        "print(json.dumps([len(table), str(table.features['hit'].dtype), str(table.features['depth'].dtype), "
        "table[0]['id'], table[0]['output'], table.features['ref_nlls'].feature.dtype]))"
    )
    loaded = publisher.run(["-c", code, REPO])
    assert loaded.returncode == 0, loaded.stderr
    count, hit, depth, identity, output, nll = json.loads(loaded.stdout.splitlines()[-1])
    assert (count, hit, depth, nll) == (len(TRIALS), "bool", "int64", "float64")
    assert {"id": identity, "output": output}.items() <= TRIALS[0].items()
    card = (
        "import sys; from huggingface_hub import DatasetCard; card = DatasetCard.load(sys.argv[1]); "
        "card.validate(repo_type='dataset'); print(card.data.license)"
    )
    assert publisher.run(["-c", card, REPO]).stdout.splitlines()[-1] == "apache-2.0"


def test_an_unchanged_report_makes_no_commit_and_a_changed_one_sends_only_what_changed(
    hub: DatasetHub, publisher: Publisher
) -> None:
    publisher.publish()
    again = publisher.publish()
    assert again.stdout.splitlines()[-1] == f"{REPO}: nothing changed, no commit was made"
    repository = hub.repositories[REPO]
    assert len(repository.trees) == 2
    assert len(hub.uploaded) == 1

    repository.trees[-1] |= {"notes.txt": b"written by hand", "figures/f0_old.svg": b"<svg/>", "old.parquet": b"x"}
    (publisher.report / "results.json").write_text('{"schema": 2}\n')
    changed = publisher.publish()
    assert "1 files sent (14 B), 2 removed, in one commit" in changed.stdout
    assert len(repository.trees) == 3
    assert set(repository.tree) == PUBLISHED | {".gitattributes", "notes.txt"}
    assert repository.tree["results.json"] == b'{"schema": 2}\n'
    assert len(hub.uploaded) == 1


def test_a_dry_run_lists_files_and_sizes_and_asks_nobody(hub: DatasetHub, publisher: Publisher) -> None:
    done = publisher.publish("--dry-run")
    assert done.returncode == 0, done.stderr
    for path in PUBLISHED:
        assert f"  {path}\n" in done.stdout
    assert "in 12 files" in done.stdout
    for name in (".hidden", "samples.md.1.part"):
        assert f"left out, no file of a report: {name}\n" in done.stdout
        assert f"  {name}\n" not in done.stdout
    assert done.stdout.splitlines()[-1] == f"{REPO}: dry run, nothing was sent"
    assert not hub.requests


def test_private_makes_a_private_repository_and_never_fills_a_public_one(hub: DatasetHub, publisher: Publisher) -> None:
    assert publisher.publish("--private").returncode == 0
    assert hub.repositories[REPO].private
    hub.repositories["me/open"] = Repository()
    assert "me/open exists and is public" in publisher.refused("--private", repo="me/open")
    assert len(hub.repositories["me/open"].trees) == 1


def test_a_wrong_or_missing_login_is_told_in_one_line(hub: DatasetHub, publisher: Publisher) -> None:
    assert "does not accept the token; log in again" in publisher.refused(HF_TOKEN="hf_wrong_token")
    assert "no login found; run `hf auth login`" in publisher.refused(HF_TOKEN="")
    assert not hub.repositories


def test_a_repository_without_rights_is_left_alone(hub: DatasetHub, publisher: Publisher) -> None:
    hub.repositories["other/theirs"] = Repository(writable=False)
    assert "this login may not write there" in publisher.refused(repo="other/theirs")
    assert "this login may not write there" in publisher.refused(repo="other/new")
    assert len(hub.repositories["other/theirs"].trees) == 1
    assert "other/new" not in hub.repositories


def test_a_server_error_half_way_commits_nothing_and_the_same_command_goes_on(
    hub: DatasetHub, publisher: Publisher
) -> None:
    hub.failing = {"/commit/": 503}
    assert "the Hub failed (status 503); nothing was committed" in publisher.refused()
    assert set(hub.repositories[REPO].tree) == {".gitattributes"}
    assert len(hub.uploaded) == 1
    hub.failing = {}
    assert publisher.publish().returncode == 0
    assert set(hub.repositories[REPO].tree) == PUBLISHED | {".gitattributes"}
    assert len(hub.uploaded) == 1  # the large file was there already


def test_a_kill_at_any_moment_publishes_all_or_nothing(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")
    for name in strays(report):
        (report / name).unlink()
    assert kill_publishing(report, 2) == []


def test_without_a_network_the_endpoint_is_named(hub: DatasetHub, publisher: Publisher) -> None:
    error = publisher.refused(HF_ENDPOINT="http://127.0.0.1:9")
    assert error.startswith("publish: http://127.0.0.1:9 cannot be reached (ConnectError)")
    assert "HF_HUB_OFFLINE is set; unset it" in publisher.refused(HF_HUB_OFFLINE="1")


@pytest.mark.parametrize("name", ["plain", "a/b/c"])
def test_a_name_that_is_no_repository_s_is_refused_before_anything_is_sent(
    hub: DatasetHub, publisher: Publisher, name: str
) -> None:
    assert "write NAME/REPOSITORY" in publisher.refused(repo=name)
    assert not hub.requests


def test_a_report_that_is_not_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KvatlasError, match=r"there is no README\.md to publish; build the report"):
        collect(tmp_path / "nothing")
    broken = write_report(tmp_path / "broken")
    (broken / "trials.parquet").write_bytes(b"PAR1")
    with pytest.raises(KvatlasError, match=r"trials\.parquet: not a readable parquet file"):
        collect(broken)
    card = write_report(tmp_path / "card")
    text = (card / "README.md").read_text()
    (card / "README.md").write_text(text.replace("apache-2.0", "nonsense"))
    with pytest.raises(KvatlasError, match="license 'nonsense'"):
        collect(card)
    (card / "README.md").write_bytes(b"---\n\xff")
    with pytest.raises(KvatlasError, match=r"README\.md: not UTF-8"):
        collect(card)
    rows = write_report(tmp_path / "rows")
    write_parquet(TRIALS * 50, rows / "trials.parquet")
    with pytest.raises(KvatlasError, match="size_categories must be 1K<n<10K"):
        collect(rows)


def test_sizes_are_told_in_binary_units(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")
    (report / "explorer.html").write_bytes(b"\0" * (3 * 2**20 // 2))
    lines = describe(collect(report)).splitlines()
    assert "   1.5 MiB  explorer.html" in lines
    assert "      14 B  results.json" in lines
    assert lines[-1].endswith("in 12 files")


@pytest.mark.parametrize("name", sorted({"README.md", "trials.parquet", *REST}))
def test_an_incomplete_report_is_refused(tmp_path: Path, name: str) -> None:
    report = write_report(tmp_path / "report")
    (report / name).unlink()
    with pytest.raises(KvatlasError, match=name.replace(".", r"\.")):
        collect(report)


@pytest.mark.parametrize("name", ["README.md", "results.json", "figures", "figures/f1_pareto.svg", "."])
def test_a_link_out_of_the_report_is_refused(tmp_path: Path, name: str) -> None:
    report = write_report(tmp_path / "report")
    inside, outside = report / name, tmp_path / "outside"
    inside.rename(outside)
    inside.symlink_to(outside)
    with pytest.raises(KvatlasError, match="a link, which may lead out of the report"):
        collect(report)


def test_a_dangling_link_is_refused_too(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")
    (report / "figures/f2_depth_heatmap.png").symlink_to(tmp_path / "nowhere")
    with pytest.raises(KvatlasError, match=r"f2_depth_heatmap\.png: a link"):
        collect(report)


def test_strays_are_never_published(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")
    for name in ("id_rsa", ".env", "notes.parquet", "figures/other.png", "figures/f1_pareto.pdf", "results.json.bak"):
        (report / name).write_text("not of this report")
    (report / "more").mkdir()
    (report / "more/results.json").write_text("{}")
    assert {file.path for file in collect(report)} == PUBLISHED
    found = strays(report)
    assert {"id_rsa", ".env", "notes.parquet", "figures/other.png", "more", "more/results.json"} <= set(found)
    assert not PUBLISHED & set(found)


def test_hostile_names_of_files_are_one_visible_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = write_report(tmp_path / "report")
    taken = set()
    for name in (*hostile_strings.SHORT, *hostile_strings.HALF_CHARACTERS):
        with suppress(OSError, ValueError):  # names that the file system does not take
            (report / "figures" / name.replace("/", "|")).write_text("not of this report")
            taken.add(name)
    assert len(taken) > 200
    monkeypatch.chdir(ROOT)
    assert main(["publish", "--dry-run", "--folder", str(report), "--repo-id", REPO]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("left out, no file of a report: figures/")]) >= 200
    assert all("".join(line.split()).isprintable() for line in lines)


def test_a_file_too_large_for_a_report_is_refused_with_its_size(tmp_path: Path) -> None:
    report = write_report(tmp_path / "report")
    with (report / "explorer.html").open("ab") as file:
        file.truncate(2**30 + 1)
    with pytest.raises(KvatlasError, match=r"explorer\.html: 1024\.0 MiB, more than the 1024\.0 MiB"):
        collect(report)
