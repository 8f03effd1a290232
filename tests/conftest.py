"""What all tests share: no network through the Hub's libraries, one thread, and the embedded model where needed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.places import ROOT

# Before anything imports numpy, torch or huggingface_hub, which read these once.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

EMBEDDED_MODEL = "smollm2-135m"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the embedded model, in resources/ as the workflow has it; fetched when it is not there yet."""
    from kvatlas.errors import KvatlasError
    from kvatlas.lm.catalog import load_models
    from kvatlas.lm.sources import fetch_model
    from kvatlas.paths import model_file

    folder = (ROOT / model_file(EMBEDDED_MODEL)).parent
    try:
        fetch_model(EMBEDDED_MODEL, load_models(ROOT / "config/models.yaml")[EMBEDDED_MODEL], folder)
    except KvatlasError as error:
        pytest.skip(f"the embedded model cannot be fetched: {error}")
    return folder
