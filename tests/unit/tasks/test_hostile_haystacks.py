"""A haystack of hostile texts stays text: the prompt has its length, its fact, and no control tokens but its template's."""

from __future__ import annotations

from typing import Any

import pytest

from kvatlas.tasks import needle, passkey
from tests.support import hostile_strings
from tests.support.prompts import CORPUS, TOKENIZER, text_of
from tests.support.tiny_models import SPECIAL_TOKENS

TEXTS = (*hostile_strings.SHORT, *SPECIAL_TOKENS)
HOSTILE = "".join(f"{text}. Rain fell on {token} the hills. " for text in TEXTS for token in SPECIAL_TOKENS[:2])
CONTROL = {TOKENIZER.convert_tokens_to_ids(token) for token in SPECIAL_TOKENS}


def control_tokens(prompt: dict[str, Any]) -> list[int]:
    return [number for number in prompt["ids"] if number in CONTROL]


@pytest.mark.parametrize("task", [needle, passkey])
@pytest.mark.parametrize("mode", ["aware", "agnostic"])
def test_a_hostile_corpus_is_text(task: Any, mode: str) -> None:
    shape: dict[str, Any] = {"mode": mode, "context": 900, "seeds": range(8), "depths": [50], "haystack": "corpus"}
    plain = task.make_prompts(TOKENIZER, corpus=CORPUS, **shape)
    hostile = task.make_prompts(TOKENIZER, corpus=HOSTILE, **shape)
    for prompt, other in zip(hostile, plain, strict=True):
        assert len(prompt["ids"]) == len(other["ids"])
        assert control_tokens(prompt) == control_tokens(other)
        assert prompt["answer"] in text_of(prompt, *prompt["span"])
    drawn = {text for text in TEXTS if any(text in text_of(prompt) for prompt in hostile)}
    assert len(drawn) > len(TEXTS) // 8
