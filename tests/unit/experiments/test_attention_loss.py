"""Attention loss against brute force, for every query head, and against the closed form of a random order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kvatlas.compression.build import make_policy
from kvatlas.errors import KvatlasError
from kvatlas.experiments import attention_loss
from kvatlas.lm.loading import LanguageModel
from tests.support.tiny_models import SENTENCES, make_model_dir, tiny_model

CONTEXT, QUERIES = 33, 5
SHAPES = [("llama", 4, 4), ("qwen2", 6, 2), ("qwen2", 7, 1), ("llama", 16, 2)]


def brute_force(attention: list[float], scores: list[float]) -> float:
    """Sum over m of L^m - L^m_best by its definition, divided by the number of slots."""
    n = len(attention)
    by_score = sorted(range(n), key=lambda slot: (scores[slot], slot))
    by_attention = sorted(range(n), key=lambda slot: attention[slot])
    total = 0.0
    for m in range(1, n + 1):
        total += sum(attention[slot] for slot in by_score[:m]) - sum(attention[slot] for slot in by_attention[:m])
    return total / n


def eager(model: Any, ids: torch.Tensor) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Per layer, by transformers alone: attention of the last queries to the context `[H, Q, T]`, and keys `[K, T, d]`."""
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        out = model(ids, output_attentions=True, use_cache=True)
    attention = [layer[0, :, CONTEXT:, :CONTEXT] for layer in out.attentions]
    cache = getattr(out, "past_key_values", None) or out.cache
    return attention, [layer.keys[0, :, :CONTEXT] for layer in cache.layers]


@pytest.mark.parametrize(("architecture", "heads", "kv_heads"), SHAPES)
def test_alr_is_brute_force_for_every_query_head_and_kv_head(architecture, heads, kv_heads):
    ids = torch.randint(5, 400, (1, CONTEXT + QUERIES), generator=torch.Generator().manual_seed(3))
    attention, keys = eager(tiny_model(architecture, heads=heads, kv_heads=kv_heads), ids)
    lm = LanguageModel.wrap(tiny_model(architecture, heads=heads, kv_heads=kv_heads))
    with torch.inference_mode():
        measured = attention_loss.losses(lm, make_policy({"name": "l2norm"}), ids, CONTEXT, 0)
    group = heads // kv_heads
    for layer in range(2):
        scores = (-keys[layer].norm(dim=-1)).tolist()
        for head in range(heads):
            per_query = [brute_force(row.tolist(), scores[head // group]) for row in attention[layer][head]]
            assert measured["alr"][layer][head] == pytest.approx(sum(per_query) / QUERIES, abs=1e-5)
            spread = torch.tensor(per_query, dtype=torch.float64).std().item()
            assert measured["alr_sd"][layer][head] == pytest.approx(spread, abs=1e-5)
        for kv_head in range(kv_heads):
            shared = attention[layer][kv_head * group : (kv_head + 1) * group].mean(dim=0)
            per_query = [brute_force(row.tolist(), scores[kv_head]) for row in shared]
            assert measured["alr_kv"][layer][kv_head] == pytest.approx(sum(per_query) / QUERIES, abs=1e-5)


def test_random_order_meets_its_closed_form_within_sampling_error():
    generator = torch.Generator().manual_seed(5)
    attention = torch.softmax(3 * torch.randn(1, 40, generator=generator), dim=-1)
    draws = torch.rand(4000, 40, generator=generator)
    losses = attention_loss.attention_loss(attention.expand(4000, 40), draws)
    expected = float(attention_loss.random_loss(attention))
    error = float(losses.std() / 4000**0.5)
    assert error < 0.01 * expected
    assert abs(float(losses.mean()) - expected) < 4 * error


def test_the_random_policy_of_a_cell_meets_its_closed_form():
    lm = LanguageModel.wrap(tiny_model("qwen2", layers=4, heads=6, kv_heads=2))
    ids = torch.randint(5, 400, (1, 200 + QUERIES), generator=torch.Generator().manual_seed(4))
    with torch.inference_mode():
        parts = [attention_loss.losses(lm, make_policy({"name": "random"}), ids, 200, seed) for seed in range(30)]
    means = torch.tensor([part["alr"] for part in parts]).mean(dim=(1, 2))
    expected = torch.tensor(parts[0]["random_alr"]).mean()
    assert abs(means.mean() - expected) < 4 * means.std() / len(parts) ** 0.5


def test_the_order_of_attention_loses_nothing_and_its_reverse_loses_most():
    attention = torch.softmax(torch.randn(3, 25, generator=torch.Generator().manual_seed(1)), dim=-1)
    assert attention_loss.attention_loss(attention, attention).tolist() == [0, 0, 0]
    worst = attention_loss.attention_loss(attention, -attention)
    other = attention_loss.attention_loss(attention, torch.rand(3, 25, generator=torch.Generator().manual_seed(2)))
    assert (worst > other).all()
    assert (other > 0).all()
    torch.testing.assert_close(worst, 2 * attention_loss.random_loss(attention))


def cell(root: Path, policy: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    spec: dict[str, Any] = {
        "kind": "attention_loss", "study": "attention_loss", "model": "tiny", "arm": policy["name"],
        "method": policy["name"], "policy": policy, "text": "tiny", "context": CONTEXT, "queries": QUERIES,
        "prompts": 3, "device": "cpu", "dtype": "fp32",
    }  # fmt: skip
    measured = attention_loss.measure(spec | more, {"model": root / "model", "text": root / "text.txt"})
    return list(measured.trials)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_model_dir(tmp_path / "model", "qwen2", heads=6, kv_heads=2)
    (tmp_path / "text.txt").write_text(" ".join(SENTENCES * 4), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("policy", [{"name": "keydiff"}, {"name": "snapkv", "window": 8}, {"name": "tova"}], ids=str)
def test_a_cell_holds_a_trial_per_prompt_with_every_head_of_every_layer(root, policy):
    trials = cell(root, policy)
    assert [trial["id"] for trial in trials] == [f"tiny-{CONTEXT}-p{number}" for number in range(3)]
    assert len({str(trial["alr"]) for trial in trials}) == 3
    for trial in trials:
        for name, heads in (("alr", 6), ("alr_sd", 6), ("random_alr", 6), ("alr_kv", 2), ("random_alr_kv", 2)):
            assert [len(row) for row in trial[name]] == [heads, heads]
        assert min(value for row in trial["alr"] for value in row) >= -1e-9


def test_methods_without_an_order_and_short_texts_are_reported(root):
    with pytest.raises(KvatlasError, match="'emeans_post_rope' has no order of eviction"):
        cell(root, {"name": "emeans_post_rope", "window": 4})
    with pytest.raises(KvatlasError, match="do not hold 400 prompts of 38 tokens"):
        cell(root, {"name": "l2norm"}, prompts=400)
