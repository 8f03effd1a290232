"""What reaches a terminal or a log is visible text without logins, whatever names and messages hold."""

from __future__ import annotations

import io

import pytest

from kvatlas import terminal
from kvatlas.cli import main
from kvatlas.errors import KvatlasError

HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "title": "\x1b]0;owned\x07",
    "cursor": "a\rb\x08c",
    "bidi": "\u202eevil\u202c",
    "zero width": "a\u200bb\ufeffc",
    "tag": "a\U000e0041b",
    "private": "\ue000",
    "filler": "a\u3164b",
    "surrogate": "a\udcffb",
    "separator": "a\u2028b\x85c",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_error_is_one_visible_line(text: str) -> None:
    line = str(KvatlasError(f"model folder {text}: broken\nmore"))
    assert line.isprintable()
    assert line.startswith("model folder ")
    line.encode("utf-8")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_what_a_command_prints_is_visible(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["validate", "--configfile", f"{text}.yaml"]) == main.USER_ERROR
    shown = capsys.readouterr().err
    assert shown.rstrip("\n").isprintable()
    with terminal.visible_output():
        print(f"a name: {text}")
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_plain_text_and_a_progress_bar_pass_as_they_are() -> None:
    stream = io.StringIO()
    writer = terminal._Visible(stream)
    for text in ("a line\n", "Zoë 密码 ✓\n", "\r 50%|#####     |", "\n\x1b[A"):
        writer.write(text)
    assert stream.getvalue() == "a line\nZoë 密码 ✓\n\r 50%|#####     |\n\x1b[A"


@pytest.mark.parametrize("token", ["hf_" + "a" * 34, "s3cr3t/töken value"])
def test_a_login_is_left_out_as_it_is_and_in_an_address(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    from urllib.parse import quote

    for form in (token, quote(token, safe="")):
        line = str(KvatlasError(f"the hub says {form} is wrong"))
        assert form not in line
        assert line == f"the hub says {terminal.HIDDEN} is wrong"


def test_of_a_very_long_message_the_middle_is_left_out() -> None:
    line = str(KvatlasError("start " + "x" * 10**6 + " end"))
    assert len(line) < 2 * terminal.LONGEST_MESSAGE
    assert line.startswith("start ")
    assert line.endswith(" end")
