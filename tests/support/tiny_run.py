"""A copy of the repository that runs its real experiments end to end on tiny random models, in a minute or two.

Two needle arms per budget, a question without its context and a noise floor: every rule but the fetching of wheels and
texts has a job. The models are sources of kind `path`, made in code, so nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.checkout import Checkout, make_checkout
from tests.support.tiny_models import make_model_dir, tiny_tokenizer

SHAPE = {"layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
TINY: dict[str, Any] = {
    "run": "tiny",
    "title": "Tiny run",
    "models": ["tiny"],
    "embedder": "tiny-embedder",
    "device": "cpu",
    "dtype": "fp32",
    "studies": {
        "needle": {
            "contexts": [192],
            "seeds": 2,
            "seeds_per_shard": 1,
            "depths": [30, 70],
            "haystack": "sentences",
            "new_tokens": 8,
            "n_sinks": 4,
            "n_recent": 16,
            "noise_batch": 1,
            "modes": {"aware": {"methods": ["random", "snapkv", "h2o"], "budgets": ["4x"]}},
        }
    },
}


def make_tiny_run(root: Path, config: dict[str, Any] | None = None) -> Checkout:
    """Copy the repository to `root`, with the models beside it and `config/tiny.yaml` as its configuration."""
    checkout = make_checkout(root, stand_ins=False)
    model = make_model_dir(root.parent / "models/tiny", "llama", **SHAPE, seed=1)
    embedder = make_embedder(root.parent / "models/tiny-embedder")
    entry = {"source": "path", "license": "apache-2.0"}
    catalog = {
        "tiny": {"title": "Tiny", "role": "lm", "path": str(model), "shape": SHAPE, "max_positions": 4096, **entry},
        "tiny-embedder": {"title": "Tiny embedder", "role": "embedder", "path": str(embedder), **entry},
    }
    with (root / "config/models.yaml").open("a") as stream:
        stream.write("\n" + yaml.safe_dump(catalog))
    checkout.configfile = "config/tiny.yaml"
    checkout.forks = True
    checkout.configure(config or TINY)
    return checkout


def make_embedder(folder: Path) -> Path:
    """Write a sentence embedder with random weights to `folder`."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from transformers import BertConfig, BertModel

    source = folder.with_name(f"{folder.name}-encoder")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
        BertModel(BertConfig(vocab_size=512, max_position_embeddings=4096, **sizes)).save_pretrained(source)
    tiny_tokenizer().save_pretrained(source)
    SentenceTransformer(modules=[Transformer(str(source)), Pooling(32)]).save(str(folder))
    return folder
