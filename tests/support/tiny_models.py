"""Tiny random-weight Qwen2 and Llama models with a fast tokenizer, made in code, without kvatlas."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

Architecture = Literal["qwen2", "llama"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY_SIZE = 512
# Qwen2's own word splitting: transformers gives a `qwen2` folder this one, whatever its tokenizer.json says.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SENTENCES = [
    "The ferry left the harbour at dawn and the gulls followed it out to sea.",
    "A baker in the old town sells rye bread, plum cake and coffee until noon.",
    "What is the secret passcode? The secret passcode is 4821, and nobody wrote it down.",
    "system user assistant: You are a helpful assistant. Answer with the code only.",
    "Rain fell on the northern hills for three days, and the river rose by 2 metres.",
    "The committee met on Tuesday, read 10 reports and postponed 35 of 67 decisions to 1999.",
]


@cache
def _trained_backend() -> str:
    """The byte-level BPE tokenizer as JSON; every byte is in its vocabulary, so any text round-trips."""
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return backend.to_str()


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """A fast byte-level BPE tokenizer (under 512 tokens) with a ChatML template; stop token `<|im_end|>`."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(_trained_backend()),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(
    architecture: Architecture = "qwen2",
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    max_positions: int = 4096,
    seed: int = 0,
    **config: Any,
) -> PreTrainedModel:
    """An in-memory float32 model in eval mode with random weights, the same for the same arguments.

    `heads` query heads (H) share `kv_heads` KV heads (K), so G = H / K; the hidden size is H * head_dim.
    Further keyword arguments go to the transformers configuration. The global random state is untouched.
    """
    tokenizer = tiny_tokenizer()
    classes: dict[str, Any] = {"qwen2": Qwen2Config, "llama": LlamaConfig}
    settings: dict[str, Any] = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": heads * head_dim,
        "intermediate_size": 2 * heads * head_dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": max_positions,
        "initializer_range": 0.2,  # large enough that attention is far from uniform
        "tie_word_embeddings": True,
        "bos_token_id": tokenizer.convert_tokens_to_ids("<|im_start|>"),
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(classes[architecture](**(settings | config)), dtype=torch.float32)
        # Biases start at zero, which would hide a forgotten bias (Qwen2 has one on q, k and v).
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def make_model_dir(
    path: Path | str,
    architecture: Architecture = "qwen2",
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    max_positions: int = 4096,
    seed: int = 0,
    **config: Any,
) -> Path:
    """Write `tiny_model(...)` and its tokenizer to `path` in hub layout (safetensors); return the folder."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    model = tiny_model(architecture, layers, heads, kv_heads, head_dim, max_positions, seed, **config)
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def write_gguf(path: Path, architecture: str = "llama", leave_out: str | None = None) -> Path:
    """Write `tiny_model("llama")` and its tokenizer as float32 GGUF, without the tensor `leave_out`."""
    import gguf

    model, tokenizer = tiny_model("llama"), json.loads(_trained_backend())
    config, vocabulary = model.config, tokenizer["model"]["vocab"]
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    unused = [f"<|unused_{number}|>" for number in range(config.vocab_size - len(words))]
    special = {*SPECIAL_TOKENS, *unused}
    writer.add_token_list(words + unused)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if word in special else gguf.TokenType.NORMAL for word in words + unused]
    )
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(vocabulary["<|im_start|>"])
    writer.add_eos_token_id(vocabulary["<|im_end|>"])
    writer.add_chat_template(CHAT_TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name not in (leave_out, "lm_head.weight"):  # the head is tied to the embeddings
            stored = names.get_name(name, try_suffixes=(".weight",))
            writer.add_tensor(stored, _as_stored(name, tensor, config).numpy().copy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_stored(name: str, tensor: torch.Tensor, config: Any) -> torch.Tensor:
    """GGUF interleaves the two halves of a head that the rotary embedding pairs."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return tensor
    return tensor.reshape(heads, 2, config.head_dim // 2, -1).swapaxes(1, 2).reshape(tensor.shape)
