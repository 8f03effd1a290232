"""What tests of prompts read them with: a tiny tokenizer, the text of a prompt, and a corpus of drawn sentences."""

from __future__ import annotations

from typing import Any

from kvatlas.tasks.text import draw_sentence, rng_for
from tests.support.tiny_models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
CORPUS = "\n".join(draw_sentence(rng_for("corpus", number)) for number in range(200))


def text_of(prompt: dict[str, Any], start: int = 0, stop: int | None = None) -> str:
    return str(TOKENIZER.decode(prompt["ids"][start:stop]))
