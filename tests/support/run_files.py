"""The files of a finished run by kind, and ways to lose or spoil one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kvatlas.grid import config, unfold
from kvatlas.paths import DATA_FILES, EXPLORER, PAGES, timing_of
from kvatlas.tracking import finished_run
from tests.support.checkout import Checkout

Loss = Callable[[Path], object]


def by_kind(checkout: Checkout) -> dict[str, str]:
    """Kind -> one file of a finished run of that kind, relative to the checkout."""
    root = checkout.root
    grid = unfold.grid(config.load(str(root / checkout.configfile)))
    report, paths = grid.paths.report, grid.paths
    cell = next(cell for cell in grid.trial_cells() if cell.study == "needle")
    picture = sorted((root / report / "figures").glob("*.png"))[0].relative_to(root)
    kinds = {
        "prompts": cell.inputs["prompts"],
        "cell": cell.output,
        "timing": timing_of(cell.output).as_posix(),
        "verified group": paths.verified(*cell.group_key),
        "embeddings": paths.embeddings(cell.model),
        "table": paths.table("needle"),
        "stamp": paths.figure(picture.stem),
        "picture": picture.as_posix(),
        "explorer": f"{report}/{EXPLORER}",
    }
    return kinds | {name: f"{report}/{name}" for name in (*DATA_FILES, *PAGES)}


def contents(checkout: Checkout) -> dict[str, bytes]:
    """File -> bytes, of everything that a finished run has and that two runs have in common (no durations)."""
    grid = unfold.grid(config.load(str(checkout.root / checkout.configfile)))
    pictures = (path.relative_to(checkout.root).as_posix() for path in checkout.root.glob("reports/*/figures/*"))
    names = {*finished_run.files(grid), *pictures} - {f"{grid.paths.report}/timings.json"}
    return {name: (checkout.root / name).read_bytes() for name in sorted(names)}


def lose(path: Path) -> None:
    """Delete a file."""
    path.unlink()


def cut(path: Path) -> None:
    """Cut the end of a file off."""
    path.write_bytes(path.read_bytes()[:-7])


def empty(path: Path) -> None:
    """Leave nothing in a file."""
    path.write_bytes(b"")


LOSSES: tuple[Loss, ...] = (lose, cut, empty)
