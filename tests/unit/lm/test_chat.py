"""Claims about kvatlas.lm.chat."""

from __future__ import annotations

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import SLOT, encode, encode_pieces, message, render
from tests.support.tiny_models import CHAT_TEMPLATE, tiny_tokenizer

NO_SYSTEM_TEMPLATE = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + CHAT_TEMPLATE
)


def test_the_rendered_prompt_ends_with_the_generation_prompt() -> None:
    text = render(tiny_tokenizer(), [message("system", "Be brief."), message("user", "Hello")])
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    )


def test_pieces_are_the_rendered_text_split_at_the_slots() -> None:
    tokenizer = tiny_tokenizer()
    messages = [message("user", f"Read.{SLOT}\n\nWhat?"), message("assistant", SLOT + "It.")]
    pieces = encode_pieces(tokenizer, messages)
    assert len(pieces) == 3
    joined = "".join(tokenizer.decode(piece) for piece in pieces)
    assert joined == render(tokenizer, messages).replace(SLOT, "")


def test_template_tokens_are_encoded_as_special_tokens_and_nothing_is_added() -> None:
    tokenizer = tiny_tokenizer()
    (ids,) = encode_pieces(tokenizer, [message("user", "Hello")])
    assert ids[0] == tokenizer.convert_tokens_to_ids("<|im_start|>")
    assert ids == tokenizer.apply_chat_template(
        [message("user", "Hello")], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert tokenizer.decode(encode(tokenizer, " Hello")) == " Hello"


def test_a_template_without_a_system_role_gets_the_system_text_in_the_first_user_message() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = NO_SYSTEM_TEMPLATE
    text = render(tokenizer, [message("system", "Be brief."), message("user", "Hello")])
    assert "<|im_start|>user\nBe brief.\n\nHello<|im_end|>" in text


def test_a_tokenizer_without_a_chat_template_is_a_clear_error() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(KvatlasError, match="no chat template"):
        render(tokenizer, [message("user", "Hello")])


def test_a_template_that_refuses_every_prompt_is_a_clear_error() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('never') }}"
    for messages in ([message("user", "a")], [message("system", "b"), message("user", "a")]):
        with pytest.raises(KvatlasError, match=r"refuses the prompt \(never\)"):
            render(tokenizer, messages)


def test_a_template_that_drops_message_text_is_a_clear_error() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['role'] }}{% endfor %}"
    with pytest.raises(KvatlasError, match="drops or repeats"):
        encode_pieces(tokenizer, [message("user", SLOT)])


def test_a_template_that_prints_the_date_gives_the_same_prompt_every_day() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}"
    assert render(tokenizer, [message("user", "Hello")]) == "26 Jul 2024"
