"""Answers of a batch: what was generated, and whether it holds what is known to be true."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvatlas.experiments.decoding import Continuation
from kvatlas.experiments.prompt_batches import Prompt
from kvatlas.lm.loading import LanguageModel
from kvatlas.tasks.scoring import contains_answer


def answer_fields(lm: LanguageModel, prompts: Sequence[Prompt], continuation: Continuation) -> list[dict[str, Any]]:
    """Return what was generated for each prompt, and whether it contains the known answer."""
    rows = []
    for row, prompt in enumerate(prompts):
        real = continuation.mask[row]
        ids = continuation.ids[row][real].tolist()
        text = lm.tokenizer.decode([token for token in ids if token not in lm.stop_ids])
        hit = contains_answer(text, prompt["answer"])
        rows.append({"hit": hit, "output": text, "output_ids": ids, "self_nlls": continuation.nlls[row][real].tolist()})
    return rows
