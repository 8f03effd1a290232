"""A model repository of the Hub on the loopback interface: enough for `snapshot_download` at one commit."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType


class HubServer:
    """Serve `files` (path -> content) as repository `repo` at `revision`; `downloaded` lists what was read."""

    def __init__(self, repo: str, revision: str, files: Mapping[str, bytes]) -> None:
        self.downloaded: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self, repo, revision, files))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HubServer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _handler(server: HubServer, repo: str, revision: str, files: Mapping[str, bytes]) -> type[BaseHTTPRequestHandler]:
    tree_path, file_path = f"/api/models/{repo}/tree/{revision}", f"/{repo}/resolve/{revision}/"

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            path = self.path.partition("?")[0]
            name = path.removeprefix(file_path)
            if path == tree_path:
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ]
                self._send(200, json.dumps(tree).encode(), body)
            elif path.startswith(file_path) and name in files:
                if body:
                    server.downloaded.append(name)
                self._send(200, files[name], body)
            else:
                self._send(404, b"", body)

        def _send(self, status: int, data: bytes, body: bool) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
            self.send_header("X-Repo-Commit", revision)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Keep the test's output quiet."""

    return Handler
