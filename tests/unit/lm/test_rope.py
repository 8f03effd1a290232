"""The rotation and its inverse."""

from __future__ import annotations

import pytest
import torch

from kvatlas.errors import KvatlasError
from kvatlas.lm.rope import Rotary, inversion_error
from tests.support.tiny_models import tiny_model


def test_undoing_and_redoing_rope_restores_keys_to_1e_5():
    rotary = Rotary.of(tiny_model("qwen2", head_dim=64))
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(2, 3, 500, 64, generator=generator) * 50
    positions = torch.randint(0, 32_000, (2, 3, 500), generator=generator).float()
    assert inversion_error(rotary, keys, positions) < 1e-5


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_the_rotation_is_the_models_own(architecture):
    model = tiny_model(architecture)
    rotary = Rotary.of(model)
    positions = torch.tensor([[0, 1, 17, 3000]])
    cos, sin = model.base_model.rotary_emb(torch.zeros(1), positions)
    keys = torch.randn(1, 2, 4, 16, generator=torch.Generator().manual_seed(1))
    half = torch.cat([-keys[..., 8:], keys[..., :8]], dim=-1)
    expected = keys * cos[:, None] + half * sin[:, None]
    moved = rotary.move(keys, 0.0, positions.float()[:, None].expand(1, 2, 4))
    torch.testing.assert_close(moved, expected, atol=1e-5, rtol=1e-5)


def test_moving_in_two_steps_is_moving_once_also_to_fractional_positions():
    rotary = Rotary.of(tiny_model("llama"))
    keys = torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(
        rotary.move(rotary.move(keys, 3.0, 10.25), 10.25, 20.5), rotary.move(keys, 3.0, 20.5), atol=1e-5, rtol=1e-5
    )


def test_a_rope_type_that_depends_on_length_is_refused():
    model = tiny_model("llama")
    model.base_model.rotary_emb.rope_type = "dynamic"
    with pytest.raises(KvatlasError, match="rope_type 'dynamic'"):
        Rotary.of(model)
