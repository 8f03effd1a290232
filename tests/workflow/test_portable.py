"""The portable mode: cells of config/portable.yaml equal those of another machine in every bit, wherever this runs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

from kvatlas.experiments import cell_file
from kvatlas.files import read_json
from tests.support.checkout import make_checkout
from tests.support.places import ROOT

# Cell -> checksum of its trials, made by `snakemake --configfile config/portable.yaml` on a processor with AVX-512.
TRIALS = read_json(ROOT / "tests/workflow/portable_trials.json")
CHANGE_KERNELS = """
import sys, torch
torch.ones(64, 64) @ torch.ones(64, 64)
from kvatlas.lm import portable
try:
    portable.enter()
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.mark.model
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="promised on x86-64")
def test_cells_are_those_of_another_machine_in_every_bit(smollm2: Path, tmp_path: Path):
    checkout = make_checkout(tmp_path / "repo", stand_ins=False)
    fetched = checkout.root / "resources/models" / smollm2.name
    shutil.rmtree(fetched)
    shutil.copytree(smollm2, fetched, copy_function=os.link)
    checkout.configfile, checkout.forks = "config/portable.yaml", True
    checkout.snakemake(*TRIALS)
    lines = {cell: cell_file.trial_lines(checkout.root / cell) for cell in TRIALS}
    made = {cell: xxhash.xxh3_128(b"".join(trials)).hexdigest() for cell, trials in lines.items()}
    assert made == TRIALS


def test_a_process_that_has_chosen_its_kernels_is_refused():
    done = subprocess.run([sys.executable, "-c", CHANGE_KERNELS], cwd=ROOT, text=True, capture_output=True, check=False)
    assert done.stderr.splitlines()[-1].startswith("KvatlasError: portable: torch has chosen other kernels")
