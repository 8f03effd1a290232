"""One finished toy run for all tests of the workflow."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.checkout import Checkout, make_checkout


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout whose toy run is complete; tests must leave it as they found it."""
    checkout = make_checkout(tmp_path_factory.mktemp("checkout") / "repo")
    checkout.snakemake()
    return checkout


@pytest.fixture
def edited(finished: Checkout) -> Iterator[Checkout]:
    """The finished checkout, its sources and configuration restored afterwards."""
    roots = [finished.root / name for name in ("src", "config", "workflow", "profiles")]
    before = {
        path: path.read_bytes()
        for root in roots
        for path in root.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    yield finished
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and path not in before and "__pycache__" not in path.parts:
                path.unlink()
    for path, data in before.items():
        if not path.is_file() or path.read_bytes() != data:
            path.write_bytes(data)
