"""Claims about kvatlas.lm.chat."""

from __future__ import annotations

import pytest

from kvatlas.errors import KvatlasError
from kvatlas.lm import templates
from kvatlas.lm.chat import SLOT, encode, encode_pieces, message, render
from tests.support.fetching import failure
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
    tokenizer.chat_template = "Today is {{ strftime_now('%A %Y-%m-%d %H:%M') }}."
    assert render(tokenizer, [message("user", "Hello")]) == "Today is Friday 2024-07-26 00:00."


def test_a_template_that_draws_at_random_gives_the_same_prompt_every_time() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{{ range(100000) | random }} {{ lipsum(1) }}"
    first = render(tokenizer, [message("user", "Hello")])
    tokenizer.chat_template += "{# another, so that it is compiled anew #}"
    assert render(tokenizer, [message("user", "Hello")]) == first


@pytest.mark.parametrize(
    "template",
    [
        CHAT_TEMPLATE,
        "{{ bos_token }}{{ eos_token }}{{ messages | tojson }} {{ tools is none }} {{ nothing is defined }}",
        "{%- for m in messages %}\n  {%- if loop.first %}\n{% continue %}{% endif %}\n  {{ loop.index }}\n{% endfor %}\n",
        "{% generation %}{{ messages[0].content | trim }}{% endgeneration %}|{{ messages[-1]['content'].split()[0] }}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}{{ dict(a=1) }}",
        "{% macro show(m) %}<{{ m.role | upper }}>{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
        "{{ messages[0]['content'] | length }}{{ additional_special_tokens }}{{ [3, 1] | sort }}{{ '<&>' }}",
    ],
)
def test_prompts_are_those_that_transformers_renders(template: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    messages = [
        message("system", " Be <brief> & kind. "),
        message("user", "Grüße\n\u2028 {{ x }}"),
        message("user", "b"),
    ]
    expected = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert render(tokenizer, messages) == expected


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        (
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
            "does not end, or takes more",
        ),
        ("{{ (7 ** (7 ** 9)) % 3 }}", "does not end, or takes more"),
        ("{{ 'a' * 20000000 }}", "more than 10000000 characters"),
        ("{{ 'a' * 4000000000 }}", "MemoryError"),
        (
            "{% set ns = namespace(t='aaaaaaaa') %}{% for i in range(99) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}",
            "MemoryError",
        ),
        ("{{ range(99999999) | list }}", "OverflowError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}", "RecursionError"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "RecursionError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses the prompt"),
        ("{{ messages.append(1) }}", "refuses the prompt"),
        ("{% include '/etc/hostname' %}", "fails (TypeError"),
        ("{{ messages[0].nothing.more }}", "refuses the prompt"),
        ("{% if %}", "refuses the prompt"),
        ("{{ raise_exception('two\nlines') }}", "refuses the prompt (two lines)"),
    ],
)
def test_a_hostile_template_ends_in_one_line(template: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "CPU_SECONDS", 1)
    monkeypatch.setattr(templates, "MEMORY_BYTES", 256 << 20)  # little, so that a slow machine fills it within the second
    monkeypatch.setattr(templates, "_RENDERER", templates._Renderer())
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    message_ = failure(lambda: render(tokenizer, [message("user", "Hello")]) and None)
    assert message_.startswith("models: the chat template ")
    assert reason in message_
    tokenizer.chat_template = "{{ messages[0].content }}"
    assert render(tokenizer, [message("user", "the next one")]) == "the next one"


@pytest.mark.parametrize("template", [{"tool_use": "{{ 1 }}"}, ["{{ 1 }}"], 7])
def test_a_template_that_is_no_text_is_a_clear_error(template: object) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    assert "chat template is no text" in failure(lambda: render(tokenizer, [message("user", "a")]) and None)
