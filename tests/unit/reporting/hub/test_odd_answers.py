"""Whatever a Hub answers, and whatever stands in the login, is one line; the login is in none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from kvatlas.errors import KvatlasError
from kvatlas.lm import hub as models
from kvatlas.reporting.hub import download, publishing
from tests.support.dataset_hub import TOKEN, DatasetHub, Repository
from tests.support.fetching import FACTS, refused
from tests.unit.reporting.hub.test_publishing import REPO, write_report

JSON = {"Content-Type": "application/json"}
ENTRY = {"source": "hub", "id": "me/model", "revision": "a" * 40}
NOT_OBJECTS = (b"null", b"[]", b"3", b'"text"', b"{}", b"", b"<html>", b'{"a":', b"[null]", b"\xff\xfe", b"[" * 3000)
OF_OTHER_TYPES = (
    *(b'{"siblings": [3]}', b'{"sha": 3, "id": null, "siblings": 3}', b'{"id": "a", "lastModified": 5}'),
    *(b'{"files": [3]}', b'{"files": 3}', b'{"commitUrl": 4}', b'{"objects": [{"oid": 3}]}', b'{"error": {"a": [3]}}'),
    *(b'[{"type": "file", "path": 3}]', b'[{"type": "file", "path": "x", "size": "big", "oid": 3, "lfs": 4}]'),
)
REDIRECTS = (
    *("file:///etc/passwd", "http://[bad", "gopher://x/", "", "//", "http://\udcff".encode(errors="replace").decode()),
    *("/api/datasets/me/kv-cache-report", "/api/datasets/me/kv-cache-report/tree/x"),
)
ANSWERS = (
    *((200, JSON, body) for body in (*NOT_OBJECTS, *OF_OTHER_TYPES)),
    *((status, JSON, body) for status in (400, 404) for body in (b"[3]", b"null", b'{"error": 3}')),
    *((302, {"Location": address}, b"") for address in REDIRECTS),
    *((status, {}, b"") for status in (204, 302, 304, 418, 999)),
    *((200, {"Link": f'<{address}>; rel="next"'}, b"[]") for address in ("http://[x", "gopher://x", "")),
    (200, {"Content-Encoding": "gzip"}, b"no gzip"),
)
ECHOES = [
    (status, {"X-Error-Message": f"no {TOKEN}"}, f"you sent {TOKEN}".encode()) for status in (400, 403, 404, 418, 500)
]
PUBLISHING = (
    "/api/datasets/me",
    "/tree/",
    "/preupload/",
    "/commit/",
    "validate-yaml",
    "repos/create",
    "/objects/batch",
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[DatasetHub]:
    """A Hub that this process asks, without waiting between its attempts."""
    with DatasetHub() as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        for name, value in {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(time, "sleep", lambda seconds: None)
        yield hub


@pytest.fixture
def files(tmp_path: Path) -> list[publishing.ReportFile]:
    return publishing.collect(write_report(tmp_path / "report"))


def line_of(call: Callable[[], object]) -> str:
    """The one line that a call ends in; empty where it ends well."""
    line = ""
    try:
        call()
    except KvatlasError as error:
        line = str(error)
    assert TOKEN not in line
    assert "\n" not in line
    return line


def test_any_answer_while_publishing_is_one_line(hub: DatasetHub, files: list[publishing.ReportFile]) -> None:
    lines = set()
    for part in PUBLISHING:
        for answer in (*ANSWERS, *ECHOES):
            hub.repositories.clear()
            hub.odd = {part: answer}
            lines.add(line_of(lambda: publishing.publish(files, REPO)))
    assert {line.partition(":")[0] for line in lines} <= {"", "publish"}
    assert f"publish: {REPO}: the answer was not the Hub's; check HF_ENDPOINT, or try again later" in lines


def test_any_answer_while_downloading_is_one_line_of_compare(
    hub: DatasetHub, files: list[publishing.ReportFile], tmp_path: Path
) -> None:
    hub.repositories[REPO] = Repository(trees=[{file.path: file.source.read_bytes() for file in files}])
    lines = set()
    for part in ("/api/datasets/me", "/tree/", "/resolve/"):
        for answer in (*ANSWERS, *ECHOES):
            hub.odd = {part: answer}
            lines.add(line_of(lambda: download.read_report(REPO)))
    assert f"compare: {REPO}: the Hub failed (status 500); run the same command again later" in lines
    assert not [line for line in lines if "publish" in line]
    hub.odd = {}
    missing = line_of(lambda: download.read_report("me/nothing"))
    assert (
        missing == "compare: me/nothing: the Hub has no such data set, or it is private and this login may not read it"
    )


def test_any_answer_while_a_model_is_fetched_is_one_line_that_names_it(hub: DatasetHub, tmp_path: Path) -> None:
    for answer in (*ANSWERS, *ECHOES):
        hub.odd = {"/api/models/": answer}
        line = refused(FACTS | ENTRY, tmp_path / "tiny")
        assert "model me/model" in line or "has no config.json" in line, answer
        assert TOKEN not in line


@pytest.mark.parametrize(
    "login", ["hf_tökentökentöken", "hf_with a blank", "hf_\udcff_surrogate_token", "hf_tab\ttoken"]
)
def test_a_login_that_no_request_can_carry_is_refused_and_not_shown(
    hub: DatasetHub, files: list[publishing.ReportFile], monkeypatch: pytest.MonkeyPatch, login: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", login)
    for label, call in (
        ("publish", lambda: publishing.publish(files, REPO)),
        ("compare", lambda: download.read_report(REPO)),
        ("models.tiny", lambda: models.download_snapshot("models.tiny", ENTRY)),
    ):
        line = line_of(call)
        assert line.startswith(f"{label}: the login holds characters that no token has")
        assert login not in line
    assert not hub.requests


def test_a_stored_login_is_left_out_of_what_a_hub_echoes(
    hub: DatasetHub, files: list[publishing.ReportFile], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stored = tmp_path / "token"
    stored.write_text("a-login-of-another-form")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(stored))
    hub.odd = {"/api/": (418, {}, b"you sent a-login-of-another-form")}
    assert "you sent [token]" in line_of(lambda: publishing.publish(files, REPO))
    stored.write_bytes(b"hf_\xff\xfe")
    assert "the stored login is not text" in line_of(lambda: publishing.publish(files, REPO))


def test_a_redirect_to_another_host_gets_no_login(hub: DatasetHub, files: list[publishing.ReportFile]) -> None:
    with DatasetHub() as other:
        address = other.url.replace("127.0.0.1", "localhost")
        hub.odd = {"/api/datasets/me": (302, {"Location": f"{address}/api/datasets/{REPO}"}, b"")}
        line_of(lambda: publishing.publish(files, REPO))
        assert other.requests
        assert TOKEN not in "".join(other.logins)
