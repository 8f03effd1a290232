"""Which models are refused for their configuration, in one line and before anything is loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from kvatlas.errors import KvatlasError
from kvatlas.lm.loading import LanguageModel
from kvatlas.lm.model_config import check_decoder, stop_token_ids
from kvatlas.lm.sources import fetch_model
from tests.support.fetching import Entry, failure, refused

MIXED = "has layers other than full or sliding-window attention"
PARTS = "is a model of several parts"


def edited(path_entry: Entry, name: str = "config.json", **keys: Any) -> Path:
    path = Path(path_entry["path"]) / name
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | keys))
    return path.parent


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "the weights are quantized (`quantization_config`: 'gptq')",
        ),
        ({"quantization_config": {"load_in_4bit": True, "quant_method": "bitsandbytes"}}, "'bitsandbytes')"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq'); take the unquantized model"),
        ({"compression_config": {}}, "the weights are quantized (`compression_config`: no method)"),
        ({"model_type": "llama4", "text_config": {}, "vision_config": {}}, f"'llama4' {PARTS} (`text_config`)"),
        ({"model_type": "qwen2_audio", "audio_config": {}}, f"'qwen2_audio' {PARTS} (`audio_config`)"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "'t5' is an encoder-decoder"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "has no head for the next token"),
        ({"model_type": "lfm2", "layer_types": ["conv", "full_attention"]}, f"{MIXED} (layer type 'conv')"),
        ({"model_type": "lfm2", "layer_types": None, "full_attn_idxs": [1]}, f"{MIXED} (`full_attn_idxs`)"),
        ({"model_type": "granitemoehybrid", "layer_types": ["mamba", "attention"]}, f"{MIXED} (layer type 'mamba')"),
        ({"model_type": "minimax", "layer_types": None, "attn_type_list": [0, 1]}, f"{MIXED} (`attn_type_list`)"),
        ({"model_type": "llama4_text", "attention_chunk_size": 8192}, f"{MIXED} (`attention_chunk_size`)"),
        ({"model_type": "mamba", "layer_types": None}, f"'mamba' {MIXED} (model type)"),
        ({"model_type": None}, "`model_type` of the model's config.json is None, but must be a name"),
        ({"model_type": ["qwen2"]}, "is a list, but must be a name"),
        ({"num_hidden_layers": None}, "`num_hidden_layers` of the model's config.json is None, but must be a positive"),
        ({"num_hidden_layers": 10**9}, "config.json has 1000000000 layers, but its weights hold 2"),
        ({"num_hidden_layers": 2.0}, "is 2.0, but must be a positive whole number"),
        ({"num_attention_heads": [4, 4]}, "is a list, but must be a positive whole number"),
        ({"num_attention_heads": 0}, "is 0, but must be a positive whole number"),
        ({"num_key_value_heads": True}, "is True, but must be a positive whole number"),
        ({"vocab_size": 10**9}, "describes more weights than the"),
        ({"hidden_size": 10**200}, "is a number of over 38 digits, but must be"),
        ({"intermediate_size": 10**9}, "describes more weights than the"),
        ({"head_dim": 10**6}, "describes more weights than the"),
        ({"num_experts": 10**12}, "`num_experts` of the model's config.json is 1000000000000, which no model has"),
    ],
)
def test_a_model_that_cannot_be_run_is_refused_when_it_is_fetched_and_when_it_is_loaded(
    path_entry: Entry, tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    folder = edited(path_entry, **keys)
    assert message in refused(path_entry, tmp_path / "tiny")
    assert message in failure(lambda: LanguageModel.load(folder, "cpu", "fp32") and None)


def test_every_stateful_or_composed_causal_model_of_transformers_is_refused_by_its_configuration_alone() -> None:
    checked = 0
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        config_class = CONFIG_MAPPING[kind]
        try:
            config = config_class().to_dict()
            model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[config_class]
        except Exception:
            continue
        composed = any("decoder" not in part for part in config_class.sub_configs) and kind not in ("dbrx", "mpt")
        if getattr(model_class, "_is_stateful", False) or composed or config.get("is_encoder_decoder"):
            with pytest.raises(KvatlasError):
                check_decoder(config, kind)
            checked += 1
    assert checked > 40


@pytest.mark.parametrize(
    "kind", ["llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "gemma2", "phi3", "olmo2", "granite", "gpt2"]
)
def test_plain_language_models_of_transformers_are_not_refused(kind: str) -> None:
    check_decoder(CONFIG_MAPPING[kind]().to_dict(), kind)


@pytest.mark.parametrize("ids", ["</s>", -1, True, 1.5, {}, [1, None], [[1]], 10**30])
@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_stop_tokens_that_are_no_token_ids_are_refused(
    path_entry: Entry, tmp_path: Path, name: str, ids: object
) -> None:
    (Path(path_entry["path"]) / "generation_config.json").unlink(missing_ok=True)
    edited(path_entry, name, eos_token_id=ids)
    message = refused(path_entry, tmp_path / "tiny")
    assert "`eos_token_id` of" in message
    assert "must be a token id or a list of them" in message


def test_the_stop_tokens_are_those_of_the_generation_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert stop_token_ids(tmp_path, "m") == [7]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    assert stop_token_ids(tmp_path, "m") == [5, 6]


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "is not a JSON object"),
        ("null", "is not a JSON object"),
        ('{"a": ' * 100_000, "is not valid JSON"),
        ('{"a": ' + "1" * 10_000 + "}", "is not valid JSON"),
        ("\udcff", "is not valid JSON"),
        (" " * 16_000_001, "is larger than 16000000 bytes"),
    ],
    ids=["list", "null", "deep", "huge number", "no UTF-8", "large"],
)
def test_a_configuration_that_is_no_object_is_refused(
    path_entry: Entry, tmp_path: Path, name: str, text: str, message: str
) -> None:
    (Path(path_entry["path"]) / name).write_bytes(text.encode(errors="surrogateescape"))
    assert message in refused(path_entry, tmp_path / "tiny")


def test_files_that_are_none_or_cannot_be_named_are_refused(path_entry: Entry, tmp_path: Path) -> None:
    folder = Path(path_entry["path"])
    for name in (b"two\nlines.json", b"\xff.json", "\u202ex.json".encode()):
        path = Path(bytes(folder).decode()) / name.decode(errors="surrogateescape")
        path.write_text("{}")
        assert "has a file with an unreadable name" in refused(path_entry, tmp_path / "tiny")
        path.unlink()
    (folder / "config.json").rename(folder / "kept")
    (folder / "config.json").mkdir()
    assert "config.json is not a file" in refused(path_entry, tmp_path / "tiny")
    (folder / "config.json").rmdir()
    (folder / "kept").rename(folder / "config.json")
    (folder / "adapter_config.json").write_text("{}")
    assert "is an adapter" in refused(path_entry, tmp_path / "tiny")
    (folder / "adapter_config.json").unlink()
    fetch_model("tiny", path_entry, tmp_path / "tiny")
