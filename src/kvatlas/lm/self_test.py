"""What a model shows before its numbers are believed, on a few dozen tokens: a fault is refused, or named.

The same tokens go through the model's own eager attention and head, and through kvatlas' attention, cache and head:

1. log-probabilities agree, of a prefill and of single steps behind it;
2. every layer is observed, and its slots receive as much attention as there were queries;
3. the cache holds as many bytes as the model's own;
4. keys of a prompt that starts later, rotated back, are those of the prompt itself. Where they are not, keys must not be
   un-rotated: the model's `Rotary` refuses, and policies that do not need it still run.

Weights in half precision are taken to fp32 for the test and back, which loses nothing: rounding in bf16 alone moves
log-probabilities of a real model by several nats on random tokens, more than many a feature that is dropped.

The result is kept beside a fetched model for as long as neither the model nor this package changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json, write_json
from kvatlas.lm.attention import ATTENTION_NAME
from kvatlas.lm.cache import ATTENTION, CompressedCache, Observation
from kvatlas.paths import PROVENANCE

if TYPE_CHECKING:
    from kvatlas.lm.loading import LanguageModel

RECORD = ".self_test.json"
N_PROMPT, N_STEPS, SHIFT, SEED = 20, 4, 7, 0
TOLERANCE = 1e-3
"""Largest difference of a log-probability (nats), and of a key or an attention mass relative to its size, in fp32."""
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Findings:
    """What the self-test found; `rotation` says why keys must not be un-rotated, empty where they may be."""

    rotation: str = ""


def ensure(lm: LanguageModel, folder: Path) -> Findings:
    """Return the findings for a loaded model folder, from its record where it has one that still holds.

    Raises KvatlasError, one line, for a model whose numbers would be wrong.
    """
    provenance = folder / PROVENANCE
    if not provenance.is_file():
        return run(lm)
    key = _key(lm, provenance)
    with suppress(KvatlasError, TypeError, KeyError):
        record = read_json(folder / RECORD)
        if record["key"] == key:
            return Findings(**record["findings"])
    findings = run(lm)
    with suppress(OSError):  # a folder that is not ours to write
        write_json(folder / RECORD, {"key": key, "findings": asdict(findings)})
    return findings


def run(lm: LanguageModel) -> Findings:
    """Test a model; it needs the memory of its weights in fp32. Raises KvatlasError that says what is wrong with it."""
    if getattr(lm.model.config, "kv_lora_rank", None):
        raise KvatlasError(
            "model: its cache holds latents (multi-head latent attention), which are neither keys nor values; "
            "use a model with grouped-query attention"
        )
    with torch.inference_mode(), _in_fp32(lm.model):
        return _compare(lm)


def _compare(lm: LanguageModel) -> Findings:
    ids = _ids(lm)
    expected, n_bytes = _reference(lm, ids)
    written = lm.new_cache(Observation(cumulative=True))
    measured = [lm.log_probs(lm.forward(ids[:, :N_PROMPT], written))]
    _check_observed(lm, written)
    for step in ids[:, N_PROMPT:].split(1, dim=1):
        measured.append(lm.log_probs(lm.forward(step, written)))
    _check_log_probs(lm, torch.cat(measured, dim=1), expected)
    if written.payload_nbytes != n_bytes:
        raise KvatlasError(
            f"model: its own cache holds {n_bytes} bytes where kvatlas counts {written.payload_nbytes}; not supported"
        )
    return Findings(_rotation(lm, ids, written))


@contextmanager
def _in_fp32(model: Any) -> Iterator[None]:
    """Take what a model has in half precision to fp32, and back to the very same numbers."""
    halves = [(t, t.dtype) for t in (*model.parameters(), *model.buffers()) if t.dtype in HALVES]
    for tensor, _ in halves:
        tensor.data = tensor.data.float()
    try:
        yield
    finally:
        for tensor, dtype in halves:
            tensor.data = tensor.data.to(dtype)


def _ids(lm: LanguageModel) -> Tensor:
    generator = torch.Generator().manual_seed(SEED)
    size = int(lm.model.config.vocab_size)
    return torch.randint(0, size, (2, N_PROMPT + N_STEPS), generator=generator).to(lm.device)


def _reference(lm: LanguageModel, ids: Tensor) -> tuple[Tensor, int]:
    """Return the log-probabilities `[B, T, V]` of the model by itself, and the bytes of its own cache."""
    with _eager(lm.model):
        output = lm.model(input_ids=ids, use_cache=True)
    n_bytes = sum(layer.keys.nbytes + layer.values.nbytes for layer in output.cache.layers)
    return torch.log_softmax(output.logits.float(), dim=-1), n_bytes


@contextmanager
def _eager(model: Any) -> Iterator[None]:
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(ATTENTION_NAME)


def _check_observed(lm: LanguageModel, written: CompressedCache) -> None:
    for index, layer in enumerate(written.layers):
        mass = layer.slot_statistics[ATTENTION].sum(dim=-1) if ATTENTION in layer.slot_statistics else torch.zeros(1)
        error = float((mass / N_PROMPT - 1).abs().max())
        if not error < TOLERANCE:
            raise KvatlasError(
                f"model: layer {index} of {lm.n_layers} was observed to give {float(mass.mean()):.3g} of the attention "
                f"of {N_PROMPT} queries; policies would not see what it looks at, so it is not supported"
            )


def _check_log_probs(lm: LanguageModel, measured: Tensor, expected: Tensor) -> None:
    error = float((measured - expected).abs().max())
    if not error <= TOLERANCE:
        raise KvatlasError(
            f"model: log-probabilities are off by {error:.2g} nats from those of transformers' own attention and head "
            f"({type(lm.model).__name__}); it computes something that kvatlas does not, so it is not supported"
        )


def _rotation(lm: LanguageModel, ids: Tensor, written: CompressedCache) -> str:
    """Say which layer's keys cannot be rotated to another position, or return an empty text."""
    later = lm.new_cache()
    later.tokens_written = SHIFT
    lm.forward(ids, later)
    for index, (layer, moved) in enumerate(zip(written.layers, later.layers, strict=True)):
        keys, shifted = layer.store.read()[0].float(), moved.store.read()[0].float()
        if _distance(lm.rotary.move(shifted, float(SHIFT), 0.0), keys) <= TOLERANCE:
            continue
        what = "has no rotation" if _distance(shifted, keys) <= TOLERANCE else "rotates its keys in another way"
        return (
            f"model: layer {index} {what}, so methods that un-rotate keys are refused on it; "
            "use methods that leave keys where they are"
        )
    return ""


def _distance(keys: Tensor, expected: Tensor) -> float:
    """Return the largest distance of a key from the expected one, relative to its length."""
    lengths = expected.norm(dim=-1).clamp_min(1e-12)
    return float(((keys - expected).norm(dim=-1) / lengths).max())


def _key(lm: LanguageModel, provenance: Path) -> str:
    """Hash what the findings depend on: the model's files, this package, the libraries, device and dtype."""
    parts = (_package_digest(), torch.__version__, transformers.__version__, str(lm.device), str(lm.dtype))
    return hashlib.sha256(provenance.read_bytes() + "\n".join(parts).encode()).hexdigest()


@cache
def _package_digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()
