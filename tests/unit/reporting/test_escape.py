"""Escaping: whatever a model writes, Markdown and HTML show it as text and nothing else."""

from __future__ import annotations

import html as stdlib_html
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from kvatlas.reporting import escape
from kvatlas.terminal import visible

MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
SPICY = st.text(
    st.sampled_from(list("|`*_{}[]()<>#+-.!~=$^&@:\\\"'/ab1\n\r\t \u200b\u202e\x00\x07\u2028wW\u00e9")),
    max_size=60,
)
ANY = st.one_of(SPICY, st.text(max_size=80))
NASTY = (
    "a | b | c",
    "`` ` ```",
    "<script>alert(1)</script>",
    "[link](http://example.com)",
    "![x](y.png)",
    "{{ 7 * 7 }} {% raw %}",
    "# heading",
    "- item",
    "1. item",
    "12) item",
    "--- ",
    "***",
    "===",
    "    code",
    "line\n\n# next",
    "http://example.com www.example.com me@example.com",
    "&lt;b&gt; &#124;",
    "\\| \\` \\",
    "~~gone~~",
    "__x__ _y_ a_b",
    "> quote",
    "<!-- c -->",
    "[ref]: http://x",
    "\u202egnp.exe",
    "tab\tbell\x07",
    "+ plus",
    "|",
    "",
)


def inline_of(source: str) -> list[Token]:
    return [token for token in MARKDOWN.parse(source) if token.type == "inline"]


def assert_text(tokens: list[Token] | None) -> str:
    assert {token.type for token in tokens or []} <= {"text", "text_special"}
    return "".join(token.content for token in tokens or [])


def expected(text: str) -> str:
    return " ".join(visible(text).split())


def check_cell(text: str) -> None:
    tokens = MARKDOWN.parse(f"| a | b |\n| --- | --- |\n| {escape.cell(text, None)} | end |\n")
    cells = [token for token in tokens if token.type == "inline"]
    assert len([token for token in tokens if token.type == "td_open"]) == 2
    assert tokens[-1].type == "table_close"
    assert assert_text(cells[2].children).replace(escape.JOINER, "") == expected(text).replace(escape.JOINER, "")
    assert assert_text(cells[3].children) == "end"


@pytest.mark.parametrize("text", NASTY)
def test_a_nasty_text_fills_one_table_cell_with_text(text: str) -> None:
    check_cell(text)


@given(ANY)
def test_any_text_fills_one_table_cell_with_text(text: str) -> None:
    check_cell(text)


@given(ANY)
def test_any_text_is_one_paragraph_of_text_at_the_start_of_a_line(text: str) -> None:
    tokens = MARKDOWN.parse(escape.cell(text, None))
    assert [token.type for token in tokens] in ([], ["paragraph_open", "inline", "paragraph_close"])
    for token in tokens:
        assert_text(token.children)


@given(ANY)
def test_any_text_leaves_a_list_item_and_bold_text_around_it_alone(text: str) -> None:
    tokens = MARKDOWN.parse(f"- **Seen.** {escape.cell(text, None)} (end)")
    (inline,) = [token for token in tokens if token.type == "inline"]
    kinds = [token.type for token in inline.children or [] if token.type not in ("text", "text_special")]
    assert kinds == ["strong_open", "strong_close"]
    assert tokens[-1].type == "bullet_list_close"


@given(ANY)
def test_a_fence_holds_any_text_in_one_code_block(text: str) -> None:
    tokens = MARKDOWN.parse(f"before\n\n{escape.fence(text, None)}\n\nafter\n")
    assert [token.type for token in tokens if token.nesting >= 0] == [
        "paragraph_open",
        "inline",
        "fence",
        "paragraph_open",
        "inline",
    ]
    (block,) = [token for token in tokens if token.type == "fence"]
    assert block.content == visible(text, newlines=True) + "\n"


@given(ANY)
def test_html_shows_any_text_without_tags_or_quotes(text: str) -> None:
    out = escape.html(text, None)
    assert not re.search("[<>\"'`{}=]", out)
    assert stdlib_html.unescape(out) == expected(text)


@given(ANY)
def test_nothing_is_left_for_a_template_engine(text: str) -> None:
    for out in (escape.cell(text), escape.html(text)):
        assert "{{" not in out
        assert "{%" not in out


@given(ANY)
def test_no_invisible_character_survives(text: str) -> None:
    for character in visible(text, newlines=True).replace("\n", ""):
        assert character.isprintable() or character.isspace()


@pytest.mark.parametrize(
    "address", ["http://example.com", "www.example.com", "WWW.example.com", "me@example.com", ":smile:"]
)
def test_bare_addresses_are_broken_for_readers_that_link_them(address: str) -> None:
    shown = stdlib_html.unescape(escape.cell(address))
    assert address not in shown
    assert shown.replace(escape.JOINER, "") == address


def test_a_long_text_is_cut_with_a_mark() -> None:
    assert escape.cell("x" * 300, 10) == "x" * 10 + " … (&#43;290 characters)".replace("&#43;", "+")
    assert escape.cell("x" * 10, 10) == "x" * 10
    assert len(escape.fence("y" * 10_000)) < 4100


def test_plain_text_and_numbers_stay_readable_in_the_source() -> None:
    for text in (
        "The code is QZT-4821.",
        "16.86",
        "100.0% ± 0.0%",
        "naive_drop-4x",
        "p = 0.012, 8 clusters",
        "−5.0 to 1.2",
    ):
        assert escape.cell(text) == text
