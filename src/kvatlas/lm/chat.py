"""Chat templates: messages to exact token ids, with marked places where a caller puts its own ids.

Text is rendered by the model's own chat template and encoded piece by piece, so that the token count of every part of a
prompt is known exactly. This module knows a tokenizer; it must not know models, caches or what a prompt is about.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kvatlas.errors import KvatlasError
from kvatlas.lm.template_child import TODAY
from kvatlas.lm.templates import TemplateRefusalError, render_template

SLOT = "[[kvatlas-slot]]"
"""Marks, inside a message's content, a place where the rendered text is split."""

Message = dict[str, str]

# Templates that print today's date or open a thinking block would make prompts differ between days or models.
_FIXED_VARIABLES: dict[str, Any] = {"date_string": TODAY.strftime("%d %b %Y"), "enable_thinking": False}


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that prompts need."""

    @property
    def chat_template(self) -> Any:
        """The chat template, or None for a model without one."""

    def encode(self, text: str, *, add_special_tokens: bool, split_special_tokens: bool = False) -> list[int]:
        """Token ids of `text`; with `split_special_tokens`, what spells a special token is text."""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""

    @property
    def added_tokens_decoder(self) -> Any:
        """Token id -> the token that was added to the vocabulary, with its flag `special`."""

    @property
    def special_tokens_map(self) -> Any:
        """The texts of special tokens by their names, which a chat template may print."""


def message(role: str, content: str) -> Message:
    """One chat message; `role` is system, user or assistant."""
    return {"role": role, "content": content}


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of `text` with nothing added: special tokens come only from the text of the chat template."""
    return list(tokenizer.encode(text, add_special_tokens=False))


def encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a text that is nobody's template: what spells a special token is encoded as the characters it is.

    Raises KvatlasError where the tokenizer makes a special token of it all the same.
    """
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = list(tokenizer.encode(text, add_special_tokens=False))
    if special.isdisjoint(ids):
        return ids
    ids = list(tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True))
    if left := sorted(special.intersection(ids)):
        token = tokenizer.added_tokens_decoder[left[0]]
        raise KvatlasError(
            f"texts: a text spells the special token {str(token)!r}, and the tokenizer cannot read it as text; "
            "remove it from the text, or choose another text"
        )
    return ids


def bos_ids(tokenizer: Tokenizer) -> list[int]:
    """The token that the tokenizer itself puts in front of a text, as a list; empty for one that puts none."""
    bos = getattr(tokenizer, "bos_token_id", None)
    first = list(tokenizer.encode("a", add_special_tokens=True))[:1]
    return first if first == [bos] else []


def check_joins(tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer that adds to every piece of text that it encodes: prompts are joined of pieces.

    Raises KvatlasError; legacy SentencePiece tokenizers put a space in front of each piece.
    """
    pieces = ("One", " two.", "\nThree", "-4", " five")
    joined = tokenizer.decode([token for piece in pieces for token in encode(tokenizer, piece)])
    if joined.removeprefix(" ") != "".join(pieces):
        raise KvatlasError(
            f"models: pieces of text joined read {joined!r}, not {''.join(pieces)!r}: the tokenizer adds to each piece, as "
            "legacy SentencePiece does; use a model whose tokenizer does not"
        )


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
    except TemplateRefusalError:
        if len(conversation) < 2 or conversation[0]["role"] != "system":
            raise
    system, first, *rest = conversation
    folded = message(first["role"], f"{system['content']}\n\n{first['content']}")
    return _apply(tokenizer, [folded, *rest])


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
    named = tokenizer.chat_template
    template = named.get("default") if isinstance(named, dict) else named
    if not isinstance(template, str):
        raise KvatlasError("models: the tokenizer's chat template is no text; choose another model")
    tokens = {
        name: [str(item) for item in value] if isinstance(value, list | tuple) else str(value)
        for name, value in tokenizer.special_tokens_map.items()
    }
    given = {"messages": conversation, "tools": None, "documents": None, "add_generation_prompt": True}
    return render_template(template, tokens | _FIXED_VARIABLES | given)
