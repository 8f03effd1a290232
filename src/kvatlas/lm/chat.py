"""Chat templates: messages to exact token ids, with marked places where a caller puts its own ids.

Text is rendered by the model's own chat template and encoded piece by piece, so that the token count of every part of a
prompt is known exactly. This module knows a tokenizer; it must not know models, caches or what a prompt is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from jinja2 import TemplateError

from kvatlas.errors import KvatlasError

SLOT = "[[kvatlas-slot]]"
"""Marks, inside a message's content, a place where the rendered text is split."""

Message = dict[str, str]

# Templates that print today's date or open a thinking block would make prompts differ between days or models.
_FIXED_VARIABLES: dict[str, Any] = {"date_string": "26 Jul 2024", "enable_thinking": False}


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that prompts need."""

    @property
    def chat_template(self) -> Any:
        """The chat template, or None for a model without one."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""

    def apply_chat_template(self, conversation: list[Message], **options: Any) -> Any:
        """Render a conversation."""


def message(role: str, content: str) -> Message:
    """One chat message; `role` is system, user or assistant."""
    return {"role": role, "content": content}


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text` with nothing added: special tokens come only from the text of the chat template."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def render(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """Render messages with the generation prompt at the end.

    A template that refuses the system role gets the system text at the start of the first user message.
    Raises KvatlasError when the tokenizer has no chat template or refuses the conversation.
    """
    if not tokenizer.chat_template:
        raise KvatlasError("models: the tokenizer has no chat template; choose an instruction-tuned model")
    conversation = [dict(item) for item in messages]
    try:
        return _apply(tokenizer, conversation)
    except TemplateError as error:
        if len(conversation) < 2 or conversation[0]["role"] != "system":
            raise KvatlasError(f"models: the chat template refuses the prompt ({error})") from error
    system, first, *rest = conversation
    folded = [message(first["role"], f"{system['content']}\n\n{first['content']}"), *rest]
    try:
        return _apply(tokenizer, folded)
    except TemplateError as error:
        raise KvatlasError(f"models: the chat template refuses the prompt ({error})") from error


def encode_pieces(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[list[int]]:
    """Render messages, split the text at every SLOT and encode each piece on its own.

    Returns one list of token ids more than there are slots; the last one ends with the generation prompt.
    Raises KvatlasError when the template drops or repeats a slot.
    """
    slots = sum(item["content"].count(SLOT) for item in messages)
    pieces = render(tokenizer, messages).split(SLOT)
    if len(pieces) != slots + 1:
        raise KvatlasError("models: the chat template drops or repeats message text; choose another model")
    return [encode(tokenizer, piece) for piece in pieces]


def _apply(tokenizer: Tokenizer, conversation: list[Message]) -> str:
    rendered = tokenizer.apply_chat_template(
        conversation, tokenize=False, add_generation_prompt=True, **_FIXED_VARIABLES
    )
    return str(rendered)
