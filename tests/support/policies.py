"""Every policy with parameters that fit tiny prompts; a new method gets all generic tests by one entry here."""

from __future__ import annotations

from typing import Any

from kvatlas.compression.registry import POLICIES

PARAMETERS: dict[str, list[dict[str, Any]]] = {
    "naive_drop": [{}],
    "random": [{}, {"seed": 3}],
    "streaming_llm": [{}],
    "sink_recent": [{}],
    "attention_sink": [{}],
    "sliding_window": [{}],
    "h2o": [{}, {"normalise": "none"}],
    "heavy_hitter": [{}],
    "heavy_hitter_layers": [{}, {"least": 1.0}],
    "snapkv": [{"window": 4, "kernel": 3}, {"window": 4, "kernel": 1}, {"window": 4, "kernel": 5, "pooling": "max"}],
    "tova": [{}, {"window": 3}],
    "l2norm": [{}],
    "high_l2": [{}],
    "keydiff": [{}],
}
CLUSTERING: dict[str, list[dict[str, Any]]] = {
    "emeans_post_rope": [{"window": 4}, {"window": 4, "weights": "uniform"}, {"window": 4, "weights": "cumulative"}],
    "emeans_pre_rope": [{"window": 4}, {"window": 4, "proportional_attention": True}],
    "pinned_emeans": [{"window": 4}],
    "snapkv_emeans": [{"window": 4}, {"window": 4, "proportional_attention": True}],
}
EVICTION_SPECS = [{"name": name, **more} for name, variants in PARAMETERS.items() for more in variants]
CLUSTERING_SPECS = [{"name": name, **more} for name, variants in CLUSTERING.items() for more in variants]
SPECS = EVICTION_SPECS + CLUSTERING_SPECS


def label(spec: dict[str, Any]) -> str:
    """Name a spec in a test id."""
    return "-".join(str(value) for value in spec.values())


def untested() -> set[str]:
    """Registered policies without an entry here."""
    return set(POLICIES) - set(PARAMETERS) - set(CLUSTERING)
