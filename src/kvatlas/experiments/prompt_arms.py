"""An arm on prefilled prompts: the compressor whose budget refers to what is compressed of them.

Apart from `arms`, which streams use too, and from `prompt_batches`, which prefills use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvatlas.compression.apply import Compressor
from kvatlas.experiments import arms, prompt_batches
from kvatlas.experiments.prompt_batches import Prompt
from kvatlas.lm.loading import LanguageModel


def compressor_of(spec: Mapping[str, Any], lm: LanguageModel, prompts: Sequence[Prompt]) -> Compressor:
    """Return what brings the full cache of prompts to the arm's budget, which refers to what is compressed."""
    seeds = [prompt_batches.prompt_seed(prompt) for prompt in prompts]
    return arms.new_compressor(spec, lm, prompts[0]["n_compress"], seeds, prompt_batches.rarity_of(lm, prompts))
