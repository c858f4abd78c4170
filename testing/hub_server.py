"""A hub on this machine: what of the Hugging Face hub's HTTP protocol a download needs.

`GET /api/models/OWNER/NAME[/revision/REV]` and `/tree/REV`, and `HEAD` and `GET
/OWNER/NAME/resolve/REV/PATH` with ETag, X-Repo-Commit, X-Linked-Size and Range. Source:
huggingface_hub's clients, and the hub's OpenAPI document.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/(.+)")
_RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d+)-")


@dataclass
class HubRepository:
    """files: contents by path; *.safetensors and *.gguf are in Git LFS.

    gated: refused without `token`.  metadata: whether sizes and hashes are listed.
    cut: bytes of a path's contents after which a connection breaks, once for each number.
    wrong: contents that are sent instead.  ranges: whether Range is honoured.
    """

    files: dict[str, bytes]
    revisions: tuple[str, ...] = ("main",)
    gated: bool = False
    private: bool = False
    metadata: bool = True
    ranges: bool = True
    licence: str = "apache-2.0"
    cut: dict[str, list[int]] = field(default_factory=dict)
    wrong: dict[str, bytes] = field(default_factory=dict)

    @property
    def commit(self) -> str:
        """Another one for other contents."""
        digest = hashlib.sha1(usedforsecurity=False)
        for path, content in sorted(self.files.items()):
            digest.update(path.encode() + b"\0" + content)
        return digest.hexdigest()

    def etag(self, path: str) -> str:
        content = self.files[path]
        if in_lfs(path):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(
            b"blob %d\0" % len(content) + content, usedforsecurity=False
        ).hexdigest()


def in_lfs(path: str) -> bool:
    return path.endswith((".safetensors", ".gguf"))


@dataclass
class HubServer:
    """requests: method, path and Range of each, in their order.

    trick: what answers instead, given the request's handler and path, where it returns true.
    """

    repositories: dict[str, HubRepository]
    url: str = ""
    token: str = "hf_secret"
    broken: int = 0  # a status that everything is answered with
    trick: Callable[[BaseHTTPRequestHandler, str], bool] | None = None
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    def sent(self, suffix: str) -> list[str]:
        """Ranges of the GETs of a file, "" for one without."""
        return [r for method, path, r in self.requests if method == "GET" and path.endswith(suffix)]


@contextmanager
def serving_hub(
    tls: ssl.SSLContext | None = None, /, **repositories: HubRepository
) -> Iterator[HubServer]:
    """Keywords: repositories of the owner `org`, `_` in their names standing for `-`."""
    named = {f"org/{name.replace('_', '-')}": one for name, one in repositories.items()}
    hub = HubServer(named)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    hub.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def handle(self) -> None:
        try:
            super().handle()
        except ConnectionError:
            pass  # the client was ended, which tests do

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path, self.headers.get("Range", "")))
        if self.hub.trick is not None and self.hub.trick(self, path):
            self.close_connection = True
        elif self.hub.broken:
            self._refuse(self.hub.broken, "", "")
        elif found := _TREE.fullmatch(path):
            self._list(found[1], found[2])
        elif found := _API.fullmatch(path):
            self._describe(found[1], found[2] or "main")
        elif found := _RESOLVE.fullmatch(path):
            self._resolve(found[1], found[2], found[3])
        else:
            self._refuse(404, "", "no such path")

    def _repository(self, name: str, revision: str, *, file: bool) -> HubRepository | None:
        """None where the request is refused, which is answered already."""
        one = self.hub.repositories.get(name)
        allowed = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        if one is None or (one.private and not allowed):
            self._refuse(401 if not allowed else 404, "RepoNotFound", "Repository not found")
        elif revision not in (*one.revisions, one.commit):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif file and one.gated and not allowed:
            status = 403 if self.headers.get("Authorization") else 401
            self._refuse(status, "GatedRepo", "Access to this model is restricted")
        else:
            return one
        return None

    def _describe(self, name: str, revision: str) -> None:
        one = self._repository(name, revision, file=False)
        if one is None:
            return
        listed = [self._sibling(one, path) for path in one.files]
        card = {"license": one.licence} if one.licence else {}
        body = {"id": name, "sha": one.commit, "siblings": listed, "cardData": card, "tags": []}
        self._send(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _list(self, name: str, revision: str) -> None:
        """What huggingface_hub's snapshot_download asks for."""
        one = self._repository(name, revision, file=False)
        if one is None:
            return
        tree = []
        for path, content in one.files.items():
            entry = {"type": "file", "path": path, "size": len(content), "oid": one.etag(path)}
            if in_lfs(path):
                entry["lfs"] = {"oid": one.etag(path), "size": len(content), "pointerSize": 134}
            tree.append(entry)
        self._send(200, json.dumps(tree).encode(), {"Content-Type": "application/json"})

    @staticmethod
    def _sibling(one: HubRepository, path: str) -> dict[str, Any]:
        if not one.metadata:
            return {"rfilename": path}
        size = len(one.files[path])
        listed = {"rfilename": path, "size": size, "blobId": "0" * 40}
        if in_lfs(path):
            listed["lfs"] = {"sha256": one.etag(path), "size": size, "pointerSize": 134}
        else:
            listed["blobId"] = one.etag(path)
        return listed

    def _resolve(self, name: str, revision: str, path: str) -> None:
        one = self._repository(name, revision, file=True)
        if one is None:
            return
        if path not in one.files:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        content = one.wrong.get(path, one.files[path])
        headers = {"ETag": f'"{one.etag(path)}"', "X-Repo-Commit": one.commit}
        if in_lfs(path):
            headers["X-Linked-Size"] = str(len(one.files[path]))
            headers["X-Linked-ETag"] = headers["ETag"]
        asked = _RANGE.fullmatch(self.headers.get("Range", "")) if one.ranges else None
        if asked is None:
            self._send(200, content, headers, one.cut.get(path))
            return
        begin = int(asked[1])
        if begin >= len(content):
            self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            return
        headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        self._send(206, content[begin:], headers, one.cut.get(path))

    def _send(
        self, status: int, body: bytes, headers: dict[str, str], cut: list[int] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut:
            self.wfile.write(body[: cut.pop(0)])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": message} if code else {}
        self._send(status, json.dumps({"error": message}).encode(), headers)
