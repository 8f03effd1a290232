"""GGUF to safetensors, once, through transformers' own GGUF reader.

The only module of the fetching side that imports torch, and only inside its function.
"""

from __future__ import annotations

import os
from importlib import metadata
from pathlib import Path
from typing import Any

from kvatlas.lm.strict import check_loaded
from kvatlas.lm.tokenizer import LOCAL_WITHOUT_CODE, loading_errors


def convert(label: str, gguf: Path, folder: Path) -> dict[str, str]:
    """Write the model and the tokenizer of `gguf` to `folder` in hub layout; return the versions that did it.

    Weights are stored in float32, as they come out of dequantization, so that no result depends on a cast.
    Raises KvatlasError, starting with `label`, when transformers cannot read the file or misses a tensor.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    versions = {name: metadata.version(name) for name in ("transformers", "gguf")}
    source: dict[str, Any] = {"gguf_file": gguf.name, **LOCAL_WITHOUT_CODE}
    loading: dict[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    auto: Any = AutoModelForCausalLM
    with loading_errors(f"{label}: transformers {versions['transformers']} cannot read {gguf.name}"):
        model, report = auto.from_pretrained(gguf.parent, dtype=torch.float32, **loading, **source)
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    check_loaded(model, report, f"{label}: {gguf.name}")
    del model.config.quantization_config
    # A model read from GGUF refuses to be saved; one made without weights and given them does not.
    with torch.device("meta"):
        plain = auto.from_config(model.config, dtype=torch.float32, trust_remote_code=False)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    plain.generation_config.eos_token_id = tokenizer.eos_token_id
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _share(folder)
    return versions


def _share(folder: Path) -> None:
    """Give every file the usual permissions: safetensors creates its files readable by their owner only."""
    mask = os.umask(0)
    os.umask(mask)
    for path in folder.iterdir():
        path.chmod(0o666 & ~mask)
