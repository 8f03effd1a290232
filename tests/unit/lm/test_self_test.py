"""A model is believed when its own attention and head agree; what does not agree is refused, or named by layer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.policies.emeans import EMeansPreRope
from kvatlas.compression.policies.snapkv import SnapKV
from kvatlas.errors import KvatlasError
from kvatlas.experiments.recall import rope_telemetry
from kvatlas.lm import self_test
from kvatlas.lm.attention import attention_forward
from kvatlas.lm.cache import Observation
from kvatlas.lm.loading import LanguageModel, own_logits
from kvatlas.lm.self_test import RECORD, Findings
from kvatlas.paths import PROVENANCE
from tests.support import architectures
from tests.support.tiny_models import make_model_dir

IDS = torch.arange(3, 51)[None]


def test_the_page_of_architectures_is_what_the_test_says():
    assert "\n".join(architectures.lines()) + "\n" == architectures.PAGE.read_text(encoding="utf-8")


def test_the_table_has_supported_partly_supported_and_refused_architectures():
    verdicts = [line.split(" | ")[1] for line in architectures.PAGE.read_text().splitlines() if line.startswith("| ")][
        2:
    ]
    assert len(verdicts) >= 45
    assert min(verdicts.count(verdict) for verdict in ("yes", "partly", "no")) >= 8


@pytest.mark.parametrize("name", ["granite", "cohere"])
def test_a_model_that_scales_its_logits_is_measured_with_its_own_head(name):
    lm = architectures.make(name)
    assert lm.scales_logits
    hidden = lm.forward(IDS, lm.new_cache())
    with self_test._eager(lm.model):
        expected = torch.log_softmax(lm.model(input_ids=IDS).logits, dim=-1)
    torch.testing.assert_close(lm.log_probs(hidden), expected, atol=1e-4, rtol=0)
    assert lm.log_probs(hidden[:, -1]).shape == (1, 96)
    with pytest.raises(KvatlasError, match=r"log-probabilities are off by .* nats"):
        self_test.run(replace(lm, scales_logits=False))


def test_the_models_own_head_leaves_the_model_as_it_was():
    lm = architectures.make("llama")
    decoder = lm.model.model
    hidden = lm.forward(IDS, lm.new_cache())
    assert torch.equal(own_logits(lm.model, hidden), lm.model.lm_head(hidden))
    assert lm.model.model is decoder


@pytest.mark.parametrize("name", ["mistral (window)", "mixtral (window)", "phi3 (window)", "starcoder2 (window)"])
def test_a_prompt_past_a_sliding_window_is_refused(name):
    lm = architectures.make(name)
    lm.forward(torch.ones(1, 64, dtype=torch.long), lm.new_cache())
    with pytest.raises(KvatlasError, match="position 65 is past the model's limit of 64 tokens"):
        lm.forward(torch.ones(1, 65, dtype=torch.long), lm.new_cache())


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({"sliding_window": 47}, "layer 1 attends within a sliding window of 47 tokens, and a prompt has 48"),
        ({"softcap": 50.0}, "layer 1 caps its attention logits"),
        ({"s_aux": torch.zeros(4)}, "layer 1 has attention sinks of its own"),
    ],
)
def test_an_attention_that_does_more_is_refused_whatever_the_configuration_says(features, message):
    lm = architectures.make("llama")
    module, states = lm.model.model.layers[1].self_attn, torch.zeros(1, 4, 1, 8)
    with pytest.raises(KvatlasError, match=message):
        attention_forward(module, states, states, states, None, tap=lm.new_cache(), n_seen=48, **features)


def test_a_layer_that_cannot_be_observed_is_an_error():
    lm = architectures.make("nemotron")
    with pytest.raises(KvatlasError, match="layer 0 hands no keywords to its attention, so nothing can observe it"):
        lm.forward(IDS, lm.new_cache())


def test_a_layer_that_is_observed_too_little_is_an_error(monkeypatch):
    lm = architectures.make("llama")
    from kvatlas.lm.cache import CompressedCache

    observe = CompressedCache.observe
    monkeypatch.setattr(
        CompressedCache, "observe", lambda self, layer, *rest: layer == 1 or observe(self, layer, *rest)
    )
    with pytest.raises(KvatlasError, match=r"layer 1 of 2 was observed to give 0 of the attention of 20 queries"):
        self_test.run(lm)


@pytest.mark.parametrize(
    ("name", "what"), [("smollm3", "layer 1 has no rotation"), ("cohere", "layer 0 rotates its keys in another way")]
)
def test_methods_that_unrotate_are_refused_by_layer_and_the_others_run(name, what):
    lm = architectures.make(name)
    lm = replace(lm, rotary=replace(lm.rotary, refusal=self_test.run(lm).rotation))
    for policy, refused in ((SnapKV(window=4), False), (EMeansPreRope(window=4), True)):
        cache = lm.new_cache(Observation(windows=(4,)))
        lm.forward(IDS, cache)
        compressor = Compressor(policy, Budget("2x", 2, 2), 48, lm.rotary, [0])
        if refused:
            with pytest.raises(KvatlasError, match=f"{what}, so methods that un-rotate keys are refused"):
                compressor(cache)
        else:
            compressor(cache)
    assert rope_telemetry(lm, cache) == {}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_model_dir(tmp_path / "model")


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    runs: list[int] = []

    def run(_: LanguageModel) -> Findings:
        runs.append(1)
        return Findings("model: layer 7 has no rotation")

    monkeypatch.setattr(self_test, "run", run)
    return runs


def test_a_folder_that_was_not_fetched_is_tested_at_every_load(folder, monkeypatch):
    runs = count_runs(monkeypatch)
    assert LanguageModel.load(folder, "cpu", "fp32").rotary.refusal == "model: layer 7 has no rotation"
    LanguageModel.load(folder, "cpu", "fp32")
    assert len(runs) == 2
    assert not (folder / RECORD).exists()


def test_a_fetched_model_is_tested_once(folder, monkeypatch):
    runs = count_runs(monkeypatch)
    (folder / PROVENANCE).write_text('{"files": {}}')
    for _ in range(2):
        assert LanguageModel.load(folder, "cpu", "fp32").rotary.refusal == "model: layer 7 has no rotation"
    assert len(runs) == 1


@pytest.mark.parametrize("change", ["provenance", "record", "dtype", "package"])
def test_a_fetched_model_is_tested_again_where_something_changed(folder, monkeypatch, change):
    runs = count_runs(monkeypatch)
    (folder / PROVENANCE).write_text('{"files": {}}')
    LanguageModel.load(folder, "cpu", "fp32")
    if change == "provenance":
        (folder / PROVENANCE).write_text('{"files": {"a": "b"}}')
    if change == "record":
        (folder / RECORD).write_text('{"key": ')
    if change == "package":
        monkeypatch.setattr(self_test, "_package_digest", lambda: "other")
    LanguageModel.load(folder, "cpu", "bf16" if change == "dtype" else "fp32")
    assert len(runs) == 2


def test_a_refused_model_leaves_no_record(folder, monkeypatch):
    (folder / PROVENANCE).write_text('{"files": {}}')
    real = self_test._reference
    monkeypatch.setattr(self_test, "_reference", lambda lm, ids: (real(lm, ids)[0] - 1, real(lm, ids)[1]))
    with pytest.raises(KvatlasError, match="log-probabilities are off by 1 nats"):
        LanguageModel.load(folder, "cpu", "fp32")
    assert not (folder / RECORD).exists()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_is_tested_in_fp32_and_left_as_it_was(dtype):
    lm = architectures.make("granite")
    lm.model.to(dtype)
    lm.model.model.rotary_emb.float()
    before = {name: (t.dtype, t.clone()) for name, t in (*lm.model.named_parameters(), *lm.model.named_buffers())}
    assert self_test.run(lm) == Findings()
    after = {name: (t.dtype, t) for name, t in (*lm.model.named_parameters(), *lm.model.named_buffers())}
    assert {name: kind for name, (kind, _) in after.items()} == {name: kind for name, (kind, _) in before.items()}
    assert all(torch.equal(after[name][1], tensor) for name, (_, tensor) in before.items())
    assert {kind for kind, _ in after.values()} == {dtype, torch.float32}
    with pytest.raises(KvatlasError, match=r"log-probabilities are off by"):
        self_test.run(replace(lm, scales_logits=False))
    assert lm.dtype == dtype
