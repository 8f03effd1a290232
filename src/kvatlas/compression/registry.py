"""The names of policies and quantizers, and where each one lives.

A name maps to a module lazily: building one arm imports that arm's module and no other, and the code fingerprint of a
cell covers exactly what it imports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvatlas.errors import KvatlasError

if TYPE_CHECKING:
    from kvatlas.compression.policies.base import Policy
    from kvatlas.lm.cache import KVStore

_POLICIES = "kvatlas.compression.policies"

POLICIES: dict[str, str] = {
    "naive_drop": f"{_POLICIES}.naive_drop:NaiveDrop",
    "random": f"{_POLICIES}.random:Random",
    "streaming_llm": f"{_POLICIES}.streaming_llm:StreamingLLM",
    "sink_recent": f"{_POLICIES}.sink_recent:SinkRecent",
    "attention_sink": f"{_POLICIES}.sink_recent:SinkRecent",
    "sliding_window": f"{_POLICIES}.sliding_window:SlidingWindow",
    "h2o": f"{_POLICIES}.h2o:H2O",
    "heavy_hitter": f"{_POLICIES}.heavy_hitter:HeavyHitter",
    "heavy_hitter_layers": f"{_POLICIES}.heavy_hitter_layers:HeavyHitterLayers",
    "snapkv": f"{_POLICIES}.snapkv:SnapKV",
    "tova": f"{_POLICIES}.tova:TOVA",
    "l2norm": f"{_POLICIES}.l2norm:L2Norm",
    "high_l2": f"{_POLICIES}.high_l2:HighL2",
    "keydiff": f"{_POLICIES}.keydiff:KeyDiff",
    "emeans_post_rope": f"{_POLICIES}.emeans:EMeansPostRope",
    "emeans_pre_rope": f"{_POLICIES}.emeans:EMeansPreRope",
    "pinned_emeans": f"{_POLICIES}.pinned_emeans:PinnedEMeans",
    "snapkv_emeans": f"{_POLICIES}.snapkv_emeans:SnapKVEMeans",
}

_QUANTIZERS = "kvatlas.compression.quantizers"

QUANTIZERS: dict[str, str] = {
    "fp32": f"{_QUANTIZERS}.cast:fp32",
    "fp16": f"{_QUANTIZERS}.cast:fp16",
    "bf16": f"{_QUANTIZERS}.cast:bf16",
    "fp8": f"{_QUANTIZERS}.cast:fp8",
    "int8": f"{_QUANTIZERS}.integer:int8",
    "int4": f"{_QUANTIZERS}.integer:int4",
    "int2": f"{_QUANTIZERS}.integer:int2",
    "kivi4": f"{_QUANTIZERS}.kivi:kivi4",
    "kivi2": f"{_QUANTIZERS}.kivi:kivi2",
}


def find(table: Mapping[str, str], name: str, kind: str) -> Any:
    """Import and return what `name` stands for in `table`. Raises KvatlasError for an unknown name."""
    if name not in table:
        raise KvatlasError(f"{kind}: '{name}' is unknown; use one of {', '.join(sorted(table))}")
    module, _, attribute = table[name].partition(":")
    return getattr(import_module(module), attribute)


FULL = "full"
UNQUANTIZED = "none"


def make_policy(spec: Mapping[str, Any]) -> Policy | None:
    """Build the policy of an arm from `{"name": ..., **parameters}`; None for the full cache.

    Raises KvatlasError for an unknown policy, or for parameters that it does not take.
    """
    if spec["name"] == FULL:
        return None
    parameters = {key: value for key, value in spec.items() if key != "name"}
    cls = find(POLICIES, spec["name"], "policy")
    try:
        policy: Policy = cls(**parameters)
    except TypeError as error:
        raise KvatlasError(f"policy {spec['name']}: {error}") from error
    return policy


def make_store(name: str, storage: str = "packed") -> Callable[[], KVStore]:
    """Return what builds a layer's store under a quantizer; `none` keeps the model's own numbers.

    `storage` is `packed` (codes are held) or `simulated` (rounded floats are held, and read as the same bits). Raises
    KvatlasError for an unknown quantizer or storage.
    """
    if storage not in ("packed", "simulated"):
        raise KvatlasError(f"storage: '{storage}' is unknown; use packed or simulated")
    if name == UNQUANTIZED:
        from kvatlas.lm.cache import PlainStore

        return PlainStore
    return partial(find(QUANTIZERS, name, "quantizer"), storage)
