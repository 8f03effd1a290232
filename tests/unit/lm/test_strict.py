"""A model is loaded from exactly its weights: nothing missing, left over or of another shape, and the head that is meant."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from kvatlas.experiments import embed, prompts
from kvatlas.lm.loading import LanguageModel
from tests.support.fetching import failure
from tests.support.tiny_models import make_model_dir

Weights = dict[str, torch.Tensor]


def edit_weights(folder: Path, change: Callable[[Weights], Weights]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def edit_json(folder: Path, name: str = "config.json", **keys: Any) -> None:
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def load(folder: Path) -> str:
    return failure(lambda: LanguageModel.load(folder, "cpu", "fp32") and None)


UP = "model.layers.0.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda w: {k: v for k, v in w.items() if k != UP},
            f"lack 1 tensor, which would be drawn at random; the first is {UP}",
        ),
        (
            lambda w: {k.replace("up_proj", "up"): v for k, v in w.items()},
            f"lack 2 tensors, which would be drawn at random; the first is {UP}",
        ),
        (
            lambda w: w | {"model.extra.weight": torch.ones(4)},
            "hold 1 tensor that its configuration has no place for; the first is model.extra",
        ),
        (
            lambda w: w | {UP: torch.ones(100, 64)},
            f"hold 1 tensor of another shape than its configuration has; the first is {UP}",
        ),
        (
            lambda w: w | {"lm_head.weight": torch.ones(512, 64)},
            "ties the head to the embeddings, but its weights hold another head",
        ),
        (lambda w: w | {UP: w[UP].to(torch.int8)}, f"'{UP}' is stored as I8; take the unquantized model"),
    ],
    ids=["missing", "renamed", "left over", "another shape", "another head", "8 bits"],
)
def test_weights_that_are_not_those_of_the_configuration_are_refused(
    qwen: Path, change: Callable[[Weights], Weights], message: str
) -> None:
    edit_weights(qwen, change)
    assert message in load(qwen)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tie_word_embeddings": False}, "lack 1 tensor, which would be drawn at random; the first is lm_head.weight"),
        (
            {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3},
            "config.json has 3 layers, but its weights hold 2",
        ),
        (
            {"num_hidden_layers": 1, "layer_types": ["full_attention"]},
            "hold 12 tensors that its configuration has no place for",
        ),
        ({"intermediate_size": 100}, "hold 6 tensors of another shape than its configuration has"),
    ],
    ids=["no head", "more layers", "fewer layers", "another width"],
)
def test_a_configuration_that_is_not_that_of_the_weights_is_refused(
    qwen: Path, keys: dict[str, Any], message: str
) -> None:
    edit_json(qwen, **keys)
    assert message in load(qwen)


def test_what_transformers_itself_calls_optional_is_no_reason_to_refuse(qwen: Path) -> None:
    """A copy of the tied head and old buffers of the rotation stand in many files on the Hub."""
    plain = LanguageModel.load(qwen, "cpu", "fp32")
    extra = {"lm_head.weight": plain.model.lm_head.weight.detach().clone()}
    edit_weights(qwen, lambda w: w | extra | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)})
    ids = torch.arange(20)[None]
    again = LanguageModel.load(qwen, "cpu", "fp32")
    with torch.no_grad():
        outputs = [lm.log_probs(lm.forward(ids, lm.new_cache())) for lm in (again, plain)]
    assert torch.equal(*outputs)


def test_an_untied_model_loads_with_its_own_head(tmp_path: Path) -> None:
    folder = make_model_dir(tmp_path / "untied", "llama", tie_word_embeddings=False)
    loaded = LanguageModel.load(folder, "cpu", "fp32").model
    assert torch.equal(loaded.lm_head.weight, load_file(folder / "model.safetensors")["lm_head.weight"])


def test_an_embedder_without_a_weight_is_refused(tmp_path: Path) -> None:
    from transformers import BertConfig, BertModel

    from tests.support.tiny_models import tiny_tokenizer

    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=512, **small)).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    assert embed.encode(["a"], tmp_path, "cpu").shape == (1, 16)
    edit_weights(tmp_path, lambda w: {k: v for k, v in w.items() if k != "encoder.layer.0.output.dense.weight"})
    message = failure(lambda: embed.encode(["a"], tmp_path, "cpu") and None)
    assert "lack encoder.layer.0.output.dense.weight, which would be drawn at random" in message


CODE = "import pathlib; pathlib.Path({!r}).write_text('ran')\nraise SystemExit\n"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_code_of_a_folder_is_neither_run_nor_asked_about(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (qwen / "modeling_x.py").write_text(CODE.format(str(tmp_path / "ran")))
    auto = {
        "AutoConfig": "modeling_x.C",
        "AutoModelForCausalLM": "modeling_x.M",
        "AutoTokenizer": ["modeling_x.T", None],
    }
    edit_json(qwen, name, auto_map=auto, **({"model_type": "own"} if name == "config.json" else {}))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    spec = {"kind": "prompts", "study": "needle", "model": "m", "task": "needle"}
    for call in (
        lambda: LanguageModel.load(qwen, "cpu", "fp32") and None,
        lambda: prompts.write(spec, {"model": qwen}, tmp_path / "out"),
        lambda: embed.encode(["a"], qwen, "cpu") and None,
    ):
        message = failure(call)
        assert f"{name} has `auto_map`" in message
        assert "never run" in message
    assert not (tmp_path / "ran").exists()


def test_an_embedder_of_foreign_modules_is_refused(tmp_path: Path, qwen: Path) -> None:
    (qwen / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "modeling_x.Module"}]))
    assert "names modules that are not sentence-transformers' own" in failure(
        lambda: embed.encode(["a"], qwen, "cpu") and None
    )
