"""What the JSON files of a model folder say about the model, and which models are refused for it.

Reads `config.json`, `generation_config.json` and the tokenizer's configuration as untrusted input: bounded in size, odd
values are one line. Knows nothing of torch or transformers, so that it can answer before anything is loaded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.lm.weight_headers import Tensor

_JSON_LIMIT = 16_000_000  # bytes; a configuration has a few thousand
_COUNT_LIMIT = 10_000_000  # no layer, head, expert or label count comes near
_CONFIGS_WITH_CODE = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")

# Sizes that a decoder needs: a positive whole number under one of these names, wherever one stands.
_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
_SIZES_OR_NULL = ("num_key_value_heads", "head_dim")
_NO_DECODER = re.compile(
    r"^(vision|audio|image|video|speech|text|language|llm|thinker|talker|vq|vae|encoder|decoder|audio_encoder"
    r"|text_encoder|depth_decoder|patcher)(_config)?$"
)
_ATTENTION = {"'full_attention'", "'sliding_attention'", "'attention'"}
# Keys that only configurations with state-space, convolution, linear or chunked-attention layers have.
_OTHER_LAYERS = re.compile(
    r"^(mamba_|ssm_|linear_(conv|head|num|key|value|attn)|lru_|conv_L_cache|conv_kernel|state_size|block_types$"
    r"|layers_block_type|attn_layer_indices|attn_type_list|full_attn_idxs|hybrid_|attention_chunk_size)"
)
_OTHER_TYPES = {"mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm", "zaya", "deepseek_v4", "minimax"}
_LAYER = re.compile(r"\b(?:layers|h|blocks|block)\.(\d{1,9})\.")


def read_object(path: Path, label: str) -> dict[str, Any]:
    """The JSON object in `path`. Raises KvatlasError, starting with `label`, when there is none or it is too large."""
    content = _read_json(path, label)
    if not isinstance(content, dict):
        raise KvatlasError(f"{label}: {path} is not a JSON object; fetch it again")
    return content


def config_facts(folder: Path, label: str) -> dict[str, Any]:
    """Return `shape` and `max_positions` of a catalog entry as far as the folder's config.json says them."""
    config = read_object(folder / "config.json", label)
    heads = config.get("num_attention_heads")
    shape = {
        "layers": config.get("num_hidden_layers"),
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads", heads),
        "head_dim": config.get("head_dim") or (heads and config.get("hidden_size", 0) // heads),
    }
    known = {key: value for key, value in shape.items() if value is not None}
    facts = {"shape": known, "max_positions": config.get("max_position_embeddings")}
    return {key: value for key, value in facts.items() if value}


def _read_json(path: Path, label: str) -> Any:
    try:
        if path.exists() and not path.is_file():
            raise KvatlasError(f"{label}: {path} is not a file")
        if path.stat().st_size > _JSON_LIMIT:
            raise KvatlasError(f"{label}: {path} is larger than {_JSON_LIMIT} bytes; it is no configuration")
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise KvatlasError(
            f"{label}: {path.parent} has no {path.name}; it is not a model folder in hub layout"
        ) from error
    except OSError as error:
        raise KvatlasError(f"{label}: {path} cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise KvatlasError(f"{label}: {path} is not valid JSON; fetch it again") from error


def refuse_code(folder: Path, label: str) -> None:
    """Raise KvatlasError, starting with `label`, when a configuration in `folder` names code to load it with."""
    for name in _CONFIGS_WITH_CODE:
        path = folder / name
        if path.exists() and "auto_map" in read_object(path, label):
            raise KvatlasError(
                f"{label}: {path} has `auto_map`, which loads the model by code of its own; code from a model folder is "
                "never run: take a model that transformers knows, or a copy without `auto_map` if its own class serves"
            )
    modules = folder / "modules.json"
    parts = _read_json(modules, label) if modules.exists() else []
    parts = parts if isinstance(parts, list) else [parts]
    known = [
        isinstance(part, dict) and _short(part.get("type")).startswith("'sentence_transformers.") for part in parts
    ]
    if not all(known):
        raise KvatlasError(
            f"{label}: {modules} names modules that are not sentence-transformers' own; they are never run"
        )
    if (folder / "adapter_config.json").exists():
        raise KvatlasError(f"{label}: {folder} is an adapter (adapter_config.json); merge it into its model first")


def check_decoder(config: Mapping[str, Any], label: str) -> None:
    """Raise KvatlasError, starting with `label`, unless `config` is of a plain decoder-only language model.

    Refused are quantized weights, models of several parts, encoder-decoders, models without a head for the next token
    and layers that are not attention.
    """
    reason = _why_no_plain_decoder(config)
    if reason:
        raise KvatlasError(f"{label}: {reason}")


def check_numbers(config: Mapping[str, Any], label: str) -> None:
    """Raise KvatlasError, starting with `label`, for a size that is no positive whole number, and for absurd counts."""
    for key, value in config.items():
        if key in _SIZES or (key in _SIZES_OR_NULL and value is not None):
            _check_size(key, value, label)
        elif re.match(r"(num|n)_", key) and isinstance(value, int) and abs(value) > _COUNT_LIMIT:
            raise KvatlasError(f"{label}: `{key}` of the model's config.json is {_short(value)}, which no model has")


def check_sizes(config: Mapping[str, Any], tensors: Mapping[str, Tensor], label: str) -> None:
    """Raise KvatlasError, starting with `label`, when `config` describes more layers or weights than `tensors` are.

    It bounds what loading may allocate; loading itself compares every tensor.
    """
    layers = config.get("num_hidden_layers", 0)
    held = {int(match[1]) for name in tensors if (match := _LAYER.search(name))}
    if held and layers > len(held):
        raise KvatlasError(
            f"{label}: the model's config.json has {layers} layers, but its weights hold {len(held)}; "
            "weights that are missing would be drawn at random"
        )
    width = config.get("hidden_size", 0)
    inner = config.get("intermediate_size", 0)
    least = config.get("vocab_size", 0) * width + layers * width * (inner if type(inner) is int else 0)
    heads, head_dim = config.get("num_attention_heads", 0), config.get("head_dim") or 0
    elements = sum(tensor.elements for tensor in tensors.values())
    if max(least, heads * head_dim * width) > elements:
        raise KvatlasError(
            f"{label}: the model's config.json describes more weights than the {elements} numbers that its files hold"
        )


def refuse_packed(tensors: Mapping[str, Tensor], label: str) -> None:
    """Raise KvatlasError, starting with `label`, when a weight is stored in 8 bits or fewer, without its scales."""
    for name, tensor in tensors.items():
        if name.endswith("weight") and tensor.dtype.startswith(("I", "U", "F8", "F4", "F6")):
            raise KvatlasError(f"{label}: {_short(name)} is stored as {tensor.dtype}; take the unquantized model")


def stop_token_ids(folder: Path, label: str) -> list[int]:
    """The token ids that end a reply: `eos_token_id` of generation_config.json, else of config.json.

    Raises KvatlasError, starting with `label`, when they are no token ids.
    """
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        ids = read_object(path, label).get("eos_token_id") if path.exists() else None
        if ids is not None:
            return token_ids(ids, f"{label}: `eos_token_id` of {path}")
    return []


def token_ids(value: Any, what: str) -> list[int]:
    """One token id or a list of them as a list. Raises KvatlasError, starting with `what`, for anything else."""
    ids = value if isinstance(value, list) else [value]
    if not all(type(item) is int and 0 <= item < 2**31 for item in ids):
        raise KvatlasError(f"{what} is {_short(value)}, but must be a token id or a list of them")
    return ids


def _why_no_plain_decoder(config: Mapping[str, Any]) -> str | None:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return f"`model_type` of the model's config.json is {_short(kind)}, but must be a name"
    quantized = [key for key in ("quantization_config", "compression_config") if config.get(key) is not None]
    if quantized:
        stated = config[quantized[0]]
        method = (
            _short(stated["quant_method"]) if isinstance(stated, dict) and "quant_method" in stated else "no method"
        )
        return f"the weights are quantized (`{quantized[0]}`: {method}); take the unquantized model"
    parts = sorted(key for key, value in config.items() if _NO_DECODER.match(key) and isinstance(value, dict))
    if parts:
        return f"{_short(kind)} is a model of several parts (`{parts[0]}`); only plain language models are supported"
    names = config.get("architectures")
    if config.get("is_encoder_decoder") is True:
        return f"{_short(kind)} is an encoder-decoder; only decoder-only language models are supported"
    if names and not any(_short(name).endswith(("ForCausalLM'", "LMHeadModel'")) for name in _as_list(names)):
        return f"{_short(_as_list(names)[0])} has no head for the next token; take the model's ...ForCausalLM variant"
    return _why_other_layers(config)


def _why_other_layers(config: Mapping[str, Any]) -> str | None:
    kind = config["model_type"]
    types = {_short(item) for item in _as_list(config.get("layer_types"))} - _ATTENTION
    other = sorted(key for key, value in config.items() if _OTHER_LAYERS.match(key) and value is not None)
    if types or other or kind in _OTHER_TYPES:
        why = f"layer type {sorted(types)[0]}" if types else f"`{other[0]}`" if other else "model type"
        return f"{_short(kind)} has layers other than full or sliding-window attention ({why}); it is not supported"
    return None


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _check_size(key: str, value: Any, label: str) -> None:
    if type(value) is not int or not 0 < value < 2**31:
        raise KvatlasError(
            f"{label}: `{key}` of the model's config.json is {_short(value)}, but must be a positive whole number"
        )


def _short(value: Any) -> str:
    """A foreign value for a message: one line, few characters."""
    if type(value) is int and value.bit_length() > 128:
        return "a number of over 38 digits"
    text = ascii(value) if not isinstance(value, list | dict) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
