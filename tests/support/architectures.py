"""Tiny random models of transformers' architectures, and what the self-test says of each: the table of docs/architectures.md.

`python -m tests.support.architectures` writes the page.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from kvatlas.errors import KvatlasError
from kvatlas.lm import self_test
from kvatlas.lm.loading import LanguageModel
from tests.support.places import ROOT

PAGE = ROOT / "docs/architectures.md"
HEAD = """\
# Architectures

Every model is tested when it is first loaded (`src/kvatlas/lm/self_test.py`): a few dozen tokens go through its own eager
attention and head, and through kvatlas; what disagrees is refused in one line. This is what the test says of a tiny random
model of each architecture with transformers as pinned in `constraints.txt`; `python -m tests.support.architectures` writes
the page. *Partly*: what the last column names is refused, the rest runs.

| Architecture | Supported | What is special, or the line that refuses it |
| --- | --- | --- |
"""
SIZE: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen2 (sliding layers)": {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
    "qwen2_moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": EXPERTS | {"head_dim": 16},
    "mistral": {"sliding_window": None},
    "mistral (window)": {"sliding_window": 64},
    "mixtral": EXPERTS | {"sliding_window": None},
    "mixtral (window)": EXPERTS | {"sliding_window": 64},
    "phi": {"partial_rotary_factor": 0.5},
    "phi3": {"sliding_window": None},
    "phi3 (window)": {"sliding_window": 64},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64},
    "gemma2 (full layers)": {"head_dim": 8, "layer_types": ["full_attention"] * 2},
    "gemma3_text": {"head_dim": 8, "sliding_window": 64},
    "granite": {"logits_scaling": 6.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "granitemoe": EXPERTS | {"logits_scaling": 6.0},
    "cohere": {"logit_scale": 0.2},
    "cohere2": {"logit_scale": 0.2, "sliding_window": 64},
    "olmo": {},
    "olmo2": {},
    "olmoe": EXPERTS,
    "starcoder2": {"sliding_window": None},
    "starcoder2 (window)": {"sliding_window": 64},
    "stablelm": {"partial_rotary_factor": 0.25},
    "smollm3": {"no_rope_layers": [1, 0], "use_sliding_window": False},
    "glm": {"head_dim": 8},
    "glm4": {"head_dim": 8},
    "helium": {"head_dim": 8},
    "nemotron": {},
    "gpt_neox": {"rotary_pct": 0.25},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "n_positions": 128},
    "falcon": {"alibi": False},
    "opt": {"word_embed_proj_dim": 32, "ffn_dim": 48},
    "bloom": {},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128},
    "ernie4_5": {"head_dim": 8},
    "arcee": {},
    "seed_oss": {"head_dim": 8},
    "deepseek_v2": LATENT | {"first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    "deepseek_v3": LATENT | {"first_k_dense_replace": 2, "n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    "gpt_oss": EXPERTS | {"head_dim": 8, "layer_types": ["full_attention"] * 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "granitemoehybrid": EXPERTS
    | {"layer_types": ["mamba", "attention"], "shared_intermediate_size": 16, "mamba_n_heads": 4, "mamba_d_head": 16},
    "minimax": EXPERTS | {"layer_types": ["full_attention", "linear_attention"]},
    "llama4_text": EXPERTS | {"head_dim": 8, "attention_chunk_size": 16},
}


def make(name: str) -> LanguageModel:
    """Build a tiny random model of an architecture. Raises KvatlasError where it is refused as it is."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name.partition(" ")[0], **SIZE | ARCHITECTURES[name])
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():  # so that biases, norms and sinks that begin at 0 or 1 count
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return LanguageModel.wrap(model)


def verdict(name: str) -> tuple[str, str]:
    """Return (supported: yes, partly or no; what is special, or the line that refuses)."""
    try:
        lm = make(name)
        findings = self_test.run(lm)
    except KvatlasError as error:
        return "no", str(error)
    limit = f"prompts up to the window of {lm.max_positions} tokens" if lm.max_positions < 128 else ""
    scale = "its logits are scaled by the model itself" if lm.scales_logits else ""
    special = "; ".join(filter(None, (limit, scale, findings.rotation)))
    return ("partly" if findings.rotation or limit else "yes"), special


def lines() -> Iterator[str]:
    """Yield the lines of the page."""
    yield from HEAD.splitlines()
    for name in ARCHITECTURES:
        supported, special = verdict(name)
        yield f"| {name} | {supported} | {special.replace('|', '&#124;')} |"


def write(path: Path = PAGE) -> None:
    """Write the page."""
    path.write_text("\n".join(lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    write()
