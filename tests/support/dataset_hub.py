"""Dataset repositories of the Hub on the loopback interface, in memory: create, validate, commit, list and download.

It shows that the real client makes the right calls and that the right tree comes of them; that the real Hub accepts
them it cannot show. Parquet files go the way of large files, as on the Hub.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

TOKEN = "hf_valid_token_of_the_test"


@dataclass
class Repository:
    """One dataset repository: its visibility, and the tree of every commit, oldest first."""

    private: bool = False
    trees: list[dict[str, bytes]] = field(default_factory=lambda: [{".gitattributes": b"*.parquet filter=lfs\n"}])
    writable: bool = True

    @property
    def head(self) -> str:
        """The newest commit."""
        return hashlib.sha1(repr(self.trees).encode()).hexdigest()

    @property
    def tree(self) -> dict[str, bytes]:
        """The files of the newest commit."""
        return self.trees[-1]


class DatasetHub:
    """A Hub with dataset repositories.

    `uploaded` lists large files sent, `failing` maps parts of paths to errors, `odd` maps them to whole answers: status,
    headers, body. `logins` lists what came as a login.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.uploaded: list[str] = []
        self.failing: dict[str, int] = {}
        self.odd: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.logins: set[str] = set()
        self.requests: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> DatasetHub:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


class RefusedError(Exception):
    """An answer that is an error: status, and the Hub's error code."""

    def __init__(self, status: int, code: str = "", message: str = "") -> None:
        super().__init__(status, code)
        self.status, self.code, self.message = status, code, message


class _Handler(BaseHTTPRequestHandler):
    hub: DatasetHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._answer("HEAD")

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def _answer(self, method: str) -> None:
        path = self.path.partition("?")[0]
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.requests.append(f"{method} {path}")
        self.hub.logins.add(self.headers.get("Authorization", ""))
        for part, (status, headers, data) in self.hub.odd.items():
            if part in path:
                self._send(status, data, headers)
                return
        try:
            for part, status in self.hub.failing.items():
                if part in path:
                    raise RefusedError(status)
            if method == "PUT":
                self._large(path)
            elif path.startswith("/datasets/") and "/resolve/" in path:
                self._file(path)
            elif path.endswith("/info/lfs/objects/batch"):
                self._json(self._batch())
            else:
                self._json(self._api(path))
        except RefusedError as refused:
            headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message}
            self._send(refused.status, b'{"error": "refused"}', {k: v for k, v in headers.items() if v})

    # -- rights

    def _repository(self, name: str) -> Repository:
        if self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            raise RefusedError(401, message="Invalid credentials in Authorization header")
        repository = self.hub.repositories.get(name)
        if repository is None or (repository.private and "Authorization" not in self.headers):
            raise RefusedError(404, "RepoNotFound")
        return repository

    # -- the API

    def _api(self, path: str) -> Any:
        parts = path.strip("/").split("/")
        if parts[1:] == ["validate-yaml"]:
            return {"errors": [], "warnings": []}
        if parts[1:] == ["repos", "create"]:
            return self._create(json.loads(self.body))
        name, action = "/".join(parts[2:4]), parts[4] if len(parts) > 4 else "info"
        repository = self._repository(name)
        match action:
            case "info" | "revision":
                return self._info(name, repository)
            case "tree":
                return self._tree(repository, "/".join(parts[6:]))
            case "paths-info":
                return self._tree(repository, "", set(json.loads(self.body)["paths"]))
            case "preupload":
                files = json.loads(self.body)["files"]
                return {"files": [self._mode(file["path"]) for file in files]}
            case "commit":
                return self._commit(name, repository)
        raise RefusedError(404)

    def _create(self, wanted: dict[str, Any]) -> Any:
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise RefusedError(401, message="Invalid credentials in Authorization header")
        if wanted["organization"] != "me":
            raise RefusedError(403, message="You don't have the rights to create a repository there")
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.hub.repositories:
            raise RefusedError(409)
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        self.hub.repositories[name] = Repository(private)
        return {"url": f"{self.hub.url}/datasets/{name}"}

    def _info(self, name: str, repository: Repository) -> Any:
        return {
            "id": name,
            "_id": "1",
            "author": name.partition("/")[0],
            "sha": repository.head,
            "private": repository.private,
            "disabled": False,
            "gated": False,
            "downloads": 0,
            "likes": 0,
            "tags": [],
            "siblings": [{"rfilename": path} for path in repository.tree],
        }

    def _tree(self, repository: Repository, below: str, only: set[str] | None = None) -> Any:
        entries: list[dict[str, Any]] = []
        folders: set[str] = set()
        for path, data in repository.tree.items():
            folders.update(path[:index] for index, letter in enumerate(path) if letter == "/")
            if only is None or path in only:
                entries.append(_entry(path, data))
        entries += [
            {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
            for path in sorted(folders)
            if only is None or path in only
        ]
        return [entry for entry in entries if not below or entry["path"].startswith(below + "/")]

    @staticmethod
    def _mode(path: str) -> Any:
        return {"path": path, "uploadMode": "lfs" if path.endswith(".parquet") else "regular", "shouldIgnore": False}

    def _batch(self) -> Any:
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            href = f"{self.hub.url}/large/{wanted['oid']}"
            known = wanted["oid"] in self.hub.large
            objects.append(wanted | ({} if known else {"actions": {"upload": {"href": href}}}))
        return {"transfer": "basic", "objects": objects}

    def _large(self, path: str) -> None:
        oid = path.rpartition("/")[2]
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise RefusedError(400)
        self.hub.large[oid] = self.body
        self.hub.uploaded.append(oid)
        self._send(200, b"", {})

    def _commit(self, name: str, repository: Repository) -> Any:
        if not repository.writable:
            raise RefusedError(403, message="You don't have the rights to write there")
        lines = [json.loads(line) for line in self.body.splitlines()]
        if lines[0]["value"].get("parentCommit") not in (None, repository.head):
            raise RefusedError(412)
        tree = dict(repository.tree)
        for line in lines[1:]:
            value = line["value"]
            match line["key"]:
                case "file":
                    tree[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    tree[value["path"]] = self.hub.large[value["oid"]]
                case "deletedFile":
                    del tree[value["path"]]
        repository.trees.append(tree)
        return {
            "commitOid": repository.head,
            "commitUrl": f"{self.hub.url}/datasets/{name}/commit/{repository.head}",
        }

    def _file(self, path: str) -> None:
        name, _, rest = path.removeprefix("/datasets/").partition("/resolve/")
        repository = self._repository(name)
        data = repository.tree.get(rest.partition("/")[2])
        commit = {"X-Repo-Commit": repository.head}
        if data is None:
            self._send(404, b"", commit | {"X-Error-Code": "EntryNotFound"})
        else:
            self._send(200, data, commit | {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'})

    # -- answers

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(data))} | headers).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output quiet."""


def _entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data)}
    if path.endswith(".parquet"):
        # The object id of a large file is that of its pointer.
        pointer = b"version https://git-lfs.github.com/spec/v1\n"
        lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": len(pointer)}
        return entry | {"oid": hashlib.sha1(pointer + data).hexdigest(), "lfs": lfs}
    return entry | {"oid": hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()}
