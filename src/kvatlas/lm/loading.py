"""Loading a model folder, and the few ways in which experiments run it.

Only safetensors are read, code from a model folder is never run. Everything above this module sees hidden states,
logits and a `CompressedCache`; how a model is built stays inside transformers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.modeling_outputs import MoeModelOutputWithPast

from kvatlas.errors import KvatlasError
from kvatlas.lm import self_test
from kvatlas.lm.attention import ATTENTION_NAME, AttentionTap
from kvatlas.lm.cache import CompressedCache, Observation
from kvatlas.lm.folders import check_folder
from kvatlas.lm.model_config import token_ids
from kvatlas.lm.rope import Rotary
from kvatlas.lm.stores import KVStore, PlainStore
from kvatlas.lm.strict import check_loaded
from kvatlas.lm.tokenizer import LOCAL_WITHOUT_CODE, load_tokenizer, loading_errors

FULL_ATTENTION = "full_attention"
_KEPT: ContextVar[dict[tuple[str, str, str], LanguageModel] | None] = ContextVar("kept models", default=None)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str) -> torch.device:
    """Turn `auto`, `cpu`, `cuda` or `mps` into a device. Raises KvatlasError when it is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(name, False):
        usable = ", ".join(["auto", *(key for key, there in available.items() if there)])
        raise KvatlasError(f"device: '{name}' is not available on this machine; use one of {usable}")
    return torch.device(name)


def pick_dtype(name: str, device: torch.device) -> torch.dtype:
    """Turn `auto`, `fp32`, `bf16` or `fp16` into a dtype; `auto` is bf16 on CUDA and fp32 elsewhere."""
    if name == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if name not in DTYPES:
        raise KvatlasError(f"dtype: '{name}' is unknown; use auto, {', '.join(DTYPES)}")
    return DTYPES[name]


@contextmanager
def loaded_once() -> Iterator[None]:
    """Load a folder once for all that asks for it inside; the models are dropped at the end."""
    token = _KEPT.set({})
    try:
        yield
    finally:
        _KEPT.reset(token)


@dataclass(frozen=True)
class LanguageModel:
    """A causal language model with its tokenizer, its rotation and its stop tokens.

    `scales_logits`: whether the model does more to its logits than its output embedding does.
    """

    model: Any
    tokenizer: Any
    rotary: Rotary
    stop_ids: tuple[int, ...]
    scales_logits: bool = False

    @classmethod
    def load(cls, folder: Path | str, device: str = "auto", dtype: str = "auto") -> LanguageModel:
        """Load a folder in hub layout with safetensors weights.

        Raises KvatlasError when the folder is incomplete, names code of its own, when its weights are not exactly those
        that its configuration describes, or when the architecture lacks the attention interface.
        """
        target = pick_device(device)
        if target.type == "cuda":
            # Sums over clusters use atomics otherwise, and two runs would differ in their last bits.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            torch.use_deterministic_algorithms(True, warn_only=True)
        label = f"model folder {folder}"
        kept = _KEPT.get()
        if kept is not None and (str(folder), device, dtype) in kept:
            return kept[str(folder), device, dtype]
        check_folder(Path(folder), label)
        auto: Any = AutoModelForCausalLM
        with loading_errors(f"{label}: it cannot be loaded"):
            model, report = auto.from_pretrained(
                str(folder),
                dtype=pick_dtype(dtype, target),
                attn_implementation=ATTENTION_NAME,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # so that they are reported, and refused below
                **LOCAL_WITHOUT_CODE,
            )
        check_loaded(model, report, label)
        tokenizer = load_tokenizer(folder)
        nn.Module.to(model, target)
        lm = cls.wrap(model, tokenizer)
        findings = self_test.ensure(lm, Path(folder))
        tested = replace(lm, rotary=replace(lm.rotary, refusal=findings.rotation))
        if kept is not None:
            kept[str(folder), device, dtype] = tested
        return tested

    @classmethod
    def wrap(cls, model: Any, tokenizer: Any = None) -> LanguageModel:
        """Wrap a model that is in memory already; it is switched to evaluation and to kvatlas' attention."""
        if not getattr(type(model), "_supports_attention_backend", False):
            raise KvatlasError(f"model: {type(model).__name__} does not support transformers' attention interface")
        for index, kind in enumerate(getattr(model.config, "layer_types", None) or []):
            if kind != FULL_ATTENTION:
                raise KvatlasError(
                    f"model: layer {index} is a layer of {kind}; use a model with {FULL_ATTENTION} alone"
                )
        if getattr(model, "_is_stateful", False):
            raise KvatlasError(f"model: {type(model).__name__} has layers other than attention; it is not supported")
        model.set_attn_implementation(ATTENTION_NAME)
        stops: set[int] = set()
        generation = getattr(model, "generation_config", None)
        for ids in (model.config.eos_token_id, getattr(generation, "eos_token_id", None)):
            stops.update([] if ids is None else token_ids(ids, "model: `eos_token_id`"))
        if tokenizer is not None and tokenizer.eos_token_id is not None:
            stops.add(int(tokenizer.eos_token_id))
        return cls(model.eval(), tokenizer, Rotary.of(model), tuple(sorted(stops)), scales_logits(model))

    @property
    def n_layers(self) -> int:
        """Number of decoder layers."""
        return int(self.model.config.num_hidden_layers)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return torch.device(next(self.model.parameters()).device)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights and of an unquantized cache."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def max_positions(self) -> int:
        """Longest context that the model's configuration allows, in tokens; a sliding window of all layers is one too."""
        config, limits = self.model.config, [int(self.model.config.max_position_embeddings)]
        window = getattr(config, "sliding_window", None)
        if window and getattr(config, "use_sliding_window", True) and not getattr(config, "layer_types", None):
            limits.append(int(window))
        return min(limits)

    def new_cache(
        self, observation: Observation | None = None, make_store: Callable[[], KVStore] = PlainStore
    ) -> CompressedCache:
        """Return an empty cache for this model."""
        return CompressedCache(self.n_layers, observation, make_store, self.rotary)

    def ids(self, rows: list[list[int]]) -> Tensor:
        """Put equally long lists of token ids on the model's device, `[B, T]`."""
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def forward(self, ids: Tensor, cache: CompressedCache, tap: AttentionTap | None = None) -> Tensor:
        """Run the decoder over `ids` `[B, Q]` behind what the cache holds; returns the last hidden states `[B, Q, D]`.

        Raises KvatlasError when a position would pass the model's limit.
        """
        first, n_new = cache.next_position(), ids.shape[1]
        if first + n_new > self.max_positions:
            raise KvatlasError(
                f"context: position {first + n_new} is past the model's limit of {self.max_positions} tokens; "
                "lower the context or new_tokens"
            )
        positions = torch.arange(first, first + n_new, device=ids.device)[None]
        hidden: Tensor = self.model.base_model(
            input_ids=ids, cache=cache, position_ids=positions, use_cache=True, tap=tap or cache, n_seen=first + n_new
        ).last_hidden_state
        cache.end_forward(n_new)
        return hidden

    def prefill(
        self, ids: Tensor, cache: CompressedCache, block: int = 0, after_block: Callable[[], None] | None = None
    ) -> Tensor:
        """Write a prompt `[B, T]` in blocks of queries (0: at once); returns the last block's hidden states.

        `after_block` is called when a block is in the cache, for schedules that compress while they stream.
        """
        hidden: Tensor | None = None
        for chunk in ids.split(block or ids.shape[1], dim=1):
            hidden = self.forward(chunk, cache)
            if after_block is not None:
                after_block()
        if hidden is None:
            raise KvatlasError("prompt: it holds no tokens")
        return hidden

    def log_probs(self, hidden: Tensor) -> Tensor:
        """Return next-token log-probabilities in fp32 for hidden states `[..., D]`."""
        logits = own_logits(self.model, hidden) if self.scales_logits else self.model.get_output_embeddings()(hidden)
        return torch.log_softmax(logits.float(), dim=-1)


class _Decoder(nn.Module):
    """Stands in for a model's decoder, and hands over hidden states that are there already."""

    def __init__(self, hidden: Tensor) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, *_: Any, **__: Any) -> MoeModelOutputWithPast:
        """Return the hidden states in the form of any decoder."""
        return MoeModelOutputWithPast(last_hidden_state=self.hidden)


def own_logits(model: Any, hidden: Tensor) -> Tensor:
    """Return what the model itself makes of hidden states `[..., D]`: its head with all scales and caps, `[..., V]`."""
    rows = hidden.reshape(1, -1, hidden.shape[-1])
    decoder = getattr(model, model.base_model_prefix)
    setattr(model, model.base_model_prefix, _Decoder(rows))
    try:
        ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=hidden.device)
        logits: Tensor = model(input_ids=ids, use_cache=False).logits
    finally:
        setattr(model, model.base_model_prefix, decoder)
    return logits.reshape(*hidden.shape[:-1], -1)


@torch.inference_mode()
def scales_logits(model: Any) -> bool:
    """Return whether a model's logits are more than its output embedding applied to hidden states."""
    head = model.get_output_embeddings()
    hidden = torch.linspace(-1, 1, 2 * head.weight.shape[-1], device=head.weight.device, dtype=head.weight.dtype)
    hidden = hidden.reshape(1, 2, -1)
    return not torch.equal(own_logits(model, hidden), head(hidden))
