"""A run in bad surroundings: full disks, folders without rights, clocks that jump, another run beside it, odd paths.

Each function runs the workflow and returns what went wrong, one line each. Linux; some need root, to mount a small disk.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.support import killing, run_files
from tests.support.checkout import Checkout, forget

ODD_NAME = "a répo, with 'blanks' & $HOME 文"
BOUND_BY_MODES = ["setpriv", *("--bounding-set", "-dac_override,-dac_read_search")]
BOUND_BY_MODES += ["--inh-caps", "-dac_override,-dac_read_search"]
"""Takes from root what lets it write anywhere: a command behind it is bound by the modes of files, as any user's."""
DAY = 86_400.0
OTHER_FILE = "config/other.yaml"


def full_disk(checkout: Checkout, rounds: int, seed: int = 0) -> list[str]:
    """Run a checkout that lies on a disk of its own with too little space, then with enough; `rounds` times.

    The space that is left is drawn anew each time, so that another write finds the disk full.
    """
    draw, wrong, ballast = random.Random(seed), [], checkout.root.parent / "ballast"
    checkout.snakemake()
    expected = run_files.contents(checkout)
    used = _used(checkout.root) - _after(forget, checkout)
    for number in range(rounds):
        if draw.random() < 0.5:
            forget(checkout)
        else:
            _forget_some(checkout, draw)
        _fill(ballast, int(draw.uniform(0, 0.9) * used))
        done = checkout.snakemake(check=False)
        refused = done.returncode != 0
        ballast.unlink()
        if refused and "pace left" not in done.stdout + done.stderr + _logs(checkout):
            wrong.append(f"round {number}: failed without a word of the disk")
        _unlock(checkout)
        checkout.snakemake()
        if run_files.contents(checkout) != expected or list(checkout.root.rglob("*.part")):
            wrong.append(f"round {number}: another result, or half a file")
    return wrong


def _used(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _after(change: Callable[[Checkout], None], checkout: Checkout) -> int:
    change(checkout)
    return _used(checkout.root)


def _forget_some(checkout: Checkout, draw: random.Random) -> None:
    """Remove a third of the files that a run has made."""
    for folder in ("results", "reports"):
        paths = sorted(path for path in (checkout.root / folder).rglob("*") if path.is_file())
        for path in draw.sample(paths, len(paths) // 3):
            path.unlink()


def _fill(ballast: Path, free: int) -> None:
    """Leave `free` bytes of the disk."""
    left = shutil.disk_usage(ballast.parent).free - free
    if left > 0:
        with ballast.open("wb") as stream:
            for _ in range(left // 2**16):
                stream.write(bytes(2**16))


def _logs(checkout: Checkout) -> str:
    return "".join(path.read_text(errors="replace") for path in (checkout.root / "logs").rglob("*") if path.is_file())


def _unlock(checkout: Checkout) -> None:
    if killing.is_locked(checkout):
        checkout.snakemake("--unlock")


@contextmanager
def disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of its own in memory. Raises CalledProcessError where it cannot be mounted."""
    folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def without_rights(checkout: Checkout, names: Sequence[str], targets: Sequence[str] = ()) -> list[str]:
    """Make `targets` (default: all) from nothing with each of `names` closed to writing in turn, then open."""
    wrong: list[str] = []
    checkout.snakemake(*targets)
    expected = _made(checkout, targets)
    for name in names:
        for path in (checkout.root / "results").rglob("*.jsonl"):
            path.unlink()
        for folder in (checkout.root / "results").glob("*/verified"):
            shutil.rmtree(folder)
        closed = [path for path in [checkout.root / name, *(checkout.root / name).rglob("*")] if path.is_dir()]
        _set_modes(closed, 0o500)
        done = as_a_user(checkout, "snakemake", *targets, "--cores", "2", "--configfile", checkout.configfile)
        _set_modes(closed, 0o755)
        _unlock(checkout)
        if done.returncode == 0:
            wrong.append(f"{name} closed: the run ended well")
        if not any(words in done.stderr for words in ("kvatlas: error", "ermission denied", "rite-protected")):
            wrong.append(f"{name} closed: no word of the missing right, but {done.stderr[-500:]}")
        checkout.snakemake(*targets)
        if _made(checkout, targets) != expected:
            wrong.append(f"{name}: another result")
    return wrong


def _made(checkout: Checkout, targets: Sequence[str]) -> dict[str, bytes]:
    """The files that were asked for."""
    if not targets:
        return run_files.contents(checkout)
    return {target: (checkout.root / target).read_bytes() for target in targets}


def without_a_home(checkout: Checkout, home: Path) -> list[str]:
    """Run a checkout with a HOME that cannot be written; Snakemake wants a cache, and nothing else does."""
    home.mkdir()
    home.chmod(0o500)
    places = {"HOME": str(home), "XDG_CACHE_HOME": str(home.with_name("cache"))}
    done = as_a_user(checkout, "snakemake", "--cores", "2", "--configfile", checkout.configfile, **places)
    return [] if done.returncode == 0 else [f"HOME closed: exit {done.returncode}: {done.stderr[-500:]}"]


def as_a_user(checkout: Checkout, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the checkout as somebody who is bound by the modes of files."""
    bound = BOUND_BY_MODES if os.geteuid() == 0 else []
    return subprocess.run(
        [*bound, sys.executable, "-m", *arguments],
        cwd=checkout.root,
        env=checkout.environment() | variables,
        text=True,
        capture_output=True,
        check=False,
        timeout=checkout.timeout,
    )


def _set_modes(folders: Sequence[Path], mode: int) -> None:
    for folder in folders:
        folder.chmod(mode)


def clock_back(checkout: Checkout, days: float = 2.0, *, all_of_it: bool = True) -> list[str]:
    """Let the clock jump back: all files of a finished run are of the future. Then a cell is lost, and made again.

    `all_of_it`: let what follows from the cell be looked at too, instead of the cell alone.
    """
    expected = run_files.contents(checkout)
    for folder in ("results", "reports"):
        for path in (checkout.root / folder).rglob("*"):
            later = path.stat().st_mtime + days * DAY
            os.utime(path, (later, later))
    wrong = [f"{job} is to be run again" for job in checkout.pending()]
    cell = run_files.by_kind(checkout)["cell"]
    (checkout.root / cell).unlink()
    checkout.snakemake(*([] if all_of_it else [cell]))
    if run_files.contents(checkout) != expected:
        wrong.append("another result")
    return wrong + [f"{job} is to be run again and again" for job in checkout.pending()]


def changed_bytes(checkout: Checkout, seed: int = 0) -> list[str]:
    """Change one byte of one file of every kind in turn, and keep its size and time."""
    draw, wrong = random.Random(seed), []
    checkout.snakemake()
    expected = run_files.contents(checkout)
    for kind, name in run_files.by_kind(checkout).items():
        path = checkout.root / name
        status, data = path.stat(), bytearray(path.read_bytes())
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        checkout.snakemake()
        if run_files.contents(checkout) != expected:
            wrong.append(f"{kind}: another result")
    return wrong


def two_runs(checkout: Checkout, targets: Sequence[str]) -> list[str]:
    """Make `targets` of the checkout's run and those of a run of another name at once in one folder, both from nothing.

    They differ in name alone, so that their results are the same but for it.
    """
    config = yaml.safe_load((checkout.root / checkout.configfile).read_text())
    (checkout.root / OTHER_FILE).write_text(yaml.safe_dump(config | {"run": "other"}, sort_keys=False))
    others = {target: target.replace(f"/{config['run']}/", "/other/") for target in targets}
    with killing.background_run(checkout, *targets, seconds_per_cell=0.5) as process:
        other = checkout.snakemake(*others.values(), "--configfile", OTHER_FILE, check=False)
        code = process.wait(timeout=checkout.timeout)
    if code or other.returncode:
        return [f"two runs at once: exit {code} and {other.returncode}"]
    texts = {name: (checkout.root / name).read_text() for name in (*others, *others.values())}
    return [
        f"{one}: another result beside another run"
        for one, two in others.items()
        if texts[two].replace("other", config["run"]) != texts[one].replace("other", config["run"])
    ]
