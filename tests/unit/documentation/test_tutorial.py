"""The tutorial's code runs as it stands, and prints what the page says; the README's policy is a policy."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest
import torch

from kvatlas.compression import policies
from kvatlas.compression.apply import Compressor
from kvatlas.compression.budget import Budget
from kvatlas.compression.build import make_policy
from kvatlas.lm.loading import LanguageModel
from tests.support.places import ROOT
from tests.support.tiny_models import tiny_model

BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", flags=re.M | re.S)


def test_the_tutorial_runs_from_top_to_bottom_and_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
    blocks = BLOCK.findall(page)
    assert len(blocks) == page.count("```python\n") == 6
    module = type(sys)("tutorial")
    monkeypatch.setitem(sys.modules, "tutorial", module)
    with torch.random.fork_rng(devices=[]):
        for code, expected in blocks:
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "docs/tutorial.md", "exec"), vars(module))
            assert printed.getvalue() == expected


def test_the_policy_of_the_readme_is_complete_and_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code, _ = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    assert len(code.splitlines()) <= 30
    (tmp_path / "value_norm.py").write_text(code)
    monkeypatch.setattr(policies, "__path__", [*policies.__path__, str(tmp_path)])
    lm = LanguageModel.wrap(tiny_model())
    cache = lm.new_cache()
    with torch.inference_mode():
        lm.prefill(torch.arange(5, 65)[None], cache)
    policy = make_policy({"name": "value_norm", "p": 1.0})
    norms = cache.layers[0].store.read()[1].abs().sum(dim=-1)[0]
    Compressor(policy, Budget("4x", n_sinks=2, n_recent=8), 60, lm.rotary, [0])(cache)
    for head, positions in enumerate(cache.layers[0].positions()[0].long()):
        middle = norms[head, 2:52].argsort(descending=True)[:12].sort().values + 2
        assert positions.tolist() == [0, 1, *middle.tolist(), *range(52, 60)]
