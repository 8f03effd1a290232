"""The repository speaks of its subject only: no machine's folders, no package index's host, no login."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.places import ROOT

# In pieces, so that this file does not hold what it looks for.
FORBIDDEN = {
    "a folder of one machine": r"(?<![\w.$}/-])/(work|home/\w|root|Users/\w|opt/(wheels|pypi))(/|\b)|/tmp/\w/",
    "a host of a package index": "py" + r"pi\.org|pythonho" + r"sted|registry\.npm" + r"js|deb\.deb" + "ian",
    "a login": r"\bhf_[A-Za-z0-9]{30,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16}",
    "how it was made": r"(?i)\b(as an a"
    + r"i\b|cha"
    + r"tgpt|cla"
    + r"ude|open"
    + r"ai|anthr"
    + r"opic|sub"
    + r"agent)",
    "a local version": r"==\d[\w.]*\+(cpu|cu\d+)",
    "something unfinished": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
}
SKIPPED_FOLDERS = {".git", ".snakemake", "results", "resources", "reports", "logs", "build", "dist", "venv", ".venv"}
SUFFIXES = {
    ".py",
    ".smk",
    ".md",
    ".yaml",
    ".yml",
    ".toml",
    ".txt",
    ".json",
    ".cff",
    ".ipynb",
    ".j2",
    ".csv",
    ".js",
    ".css",
    "",
}


def sources() -> list[Path]:
    """The files of the repository, by git where there is one."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = listed.stdout.splitlines() if not listed.returncode else []
    paths = [ROOT / name for name in names] or [path for path in ROOT.rglob("*") if path.is_file()]
    return sorted(
        path
        for path in paths
        if path.is_file()
        and path.suffix in SUFFIXES
        and not SKIPPED_FOLDERS & set(path.relative_to(ROOT).parts)
        and not any(part.endswith(("_cache", ".egg-info")) or part == "__pycache__" for part in path.parts)
    )


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_source_names(kind: str) -> None:
    pattern = re.compile(FORBIDDEN[kind])
    refused = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for path in sources()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert not refused, "\n".join(refused)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("a folder of one machine", "see " + "/wo" + "rk/main"),
        ("a host of a package index", "https://py" + "pi.org/simple"),
        ("a login", "hf_" + "a" * 34),
        ("a local version", "torch==2.13.0" + "+cpu"),
    ],
)
def test_the_patterns_find_what_they_are_for(kind: str, text: str) -> None:
    assert re.search(FORBIDDEN[kind], text)
