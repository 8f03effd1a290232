"""Kill `kvatlas publish` at random moments: the old report or the new one is there, and the same command ends well.

The real command and the real client of the Hub, against a Hub on the loopback interface.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.dataset_hub import TOKEN, DatasetHub
from tests.support.places import ROOT

REPO = "me/kv-cache-report"


def kill_publishing(report: Path, kills: int, seed: int = 0) -> list[str]:
    """Kill the publishing of a complete report `kills` times; return what went wrong.

    Between two kills the report changes, or the repository is gone, so that there is always something to send.
    """
    draw, wrong, notes = random.Random(seed), [], report / "samples.md"
    original = notes.read_text(encoding="utf-8")
    with DatasetHub() as hub:
        started = time.monotonic()
        _start(report, hub).wait()
        duration = time.monotonic() - started
        for number in range(kills):
            if draw.random() < 0.3:
                hub.repositories.clear()
                hub.large.clear()
            notes.write_text(f"{original}\nEdition {number}.\n", encoding="utf-8")
            before = dict(hub.repositories[REPO].tree) if REPO in hub.repositories else {}
            process = _start(report, hub)
            # It imports for most of its time; the requests come at its end.
            time.sleep(duration * draw.uniform(0.5, 1.0))
            process.kill()
            process.wait()
            repository = hub.repositories.get(REPO)
            if repository and not (_same(repository.tree, before) or _same(repository.tree, contents(report))):
                wrong.append(f"kill {number}: half of a report is published")
            if _start(report, hub).wait() or not _same(hub.repositories[REPO].tree, contents(report)):
                wrong.append(f"kill {number}: the same command did not publish the report")
    notes.write_text(original, encoding="utf-8")
    return wrong


def contents(report: Path) -> dict[str, bytes]:
    """The files that are published, of a folder that holds no others."""
    paths = (path for path in report.rglob("*") if path.is_file())
    return {path.relative_to(report).as_posix(): path.read_bytes() for path in paths}


def _same(tree: Mapping[str, bytes], expected: Mapping[str, bytes]) -> bool:
    """Whether a repository holds these files; every new one has the Hub's own `.gitattributes`."""
    return {name: data for name, data in tree.items() if name != ".gitattributes"} == {
        name: data for name, data in expected.items() if name != ".gitattributes"
    }


def _start(report: Path, hub: DatasetHub) -> subprocess.Popen[bytes]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    login = {"HF_HOME": str(report.parent / "hf"), "HF_HUB_DISABLE_XET": "1", "HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN}
    command = [sys.executable, "-m", "kvatlas.cli", "publish", "--folder", str(report), "--repo-id", REPO]
    return subprocess.Popen(command, cwd=ROOT, env=kept | login, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
