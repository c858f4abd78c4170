"""A store that speaks as much of S3's protocol as files need, in memory: written after Amazon's API
reference, without the library that asks it."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 2
"""Objects of one page of a list, so that there are several."""


class ObjectStore(ThreadingHTTPServer):
    """objects: bytes and times by path. failing: answers with this status."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.failing: int | None = None
        self.cut = False
        """Bodies break off halfway."""
        self.lock = threading.Lock()
        self.now = time.time()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Asked(BaseHTTPRequestHandler):
    server: ObjectStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if self.server.cut and body else body)
            if self.server.cut and body:
                self.close_connection = True

    def _error(self, status: int, code: str) -> None:
        self._answer(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def _begin(self) -> tuple[str, dict[str, str], bytes] | None:
        """Path, query and body; None: it is answered."""
        parts = urlsplit(self.path)
        query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if "AWS4-HMAC-SHA256" not in (self.headers.get("authorization") or ""):
            self._error(403, "AccessDenied")
            return None
        if self.server.failing:
            self._error(self.server.failing, "InternalError")
            return None
        return unquote(parts.path), query, body

    def do_PUT(self) -> None:
        if (asked := self._begin()) is None:
            return
        path, query, body = asked
        with self.server.lock:
            if "partNumber" in query:
                self.server.parts[query["uploadId"]][int(query["partNumber"])] = body
            else:
                self.server.objects[path] = body, self.server.now
        self._answer(200, ETag='"e"')

    def do_POST(self) -> None:
        if (asked := self._begin()) is None:
            return
        path, query, _ = asked
        with self.server.lock:
            if "uploads" in query:
                upload = f"u{len(self.server.parts)}"
                self.server.parts[upload] = {}
                told = f"<Key>{escape(path)}</Key><UploadId>{upload}</UploadId>"
                kind = "InitiateMultipartUploadResult"
            else:
                parts = self.server.parts.pop(query["uploadId"])
                whole = b"".join(parts[number] for number in sorted(parts))
                self.server.objects[path] = whole, self.server.now
                kind, told = "CompleteMultipartUploadResult", "<ETag>e</ETag>"
        self._answer(200, f"<{kind}>{told}</{kind}>".encode())

    def do_GET(self) -> None:
        if (asked := self._begin()) is None:
            return
        path, query, _ = asked
        if "list-type" in query:
            self._list(path, query)
        elif path not in self.server.objects:
            self._error(404, "NoSuchKey")
        else:
            self._answer(200, self.server.objects[path][0], ETag='"e"')

    def do_DELETE(self) -> None:
        if (asked := self._begin()) is None:
            return
        self.server.objects.pop(asked[0], None)
        self._answer(204)

    def _list(self, path: str, query: dict[str, str]) -> None:
        bucket = path.rstrip("/") + "/"
        keys = sorted(each.removeprefix(bucket) for each in self.server.objects)
        keys = [each for each in keys if each.startswith(query.get("prefix", ""))]
        keys = [each for each in keys if each > query.get("continuation-token", "")]
        told = "".join(
            f"<Contents><Key>{escape(each)}</Key><LastModified>"
            + datetime.fromtimestamp(self.server.objects[bucket + each][1], UTC).strftime(
                "%Y-%m-%dT%H:%M:%S.000Z"
            )
            + f"</LastModified><Size>{len(self.server.objects[bucket + each][0])}</Size></Contents>"
            for each in keys[:PAGE]
        )
        more = len(keys) > PAGE
        told += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        told += f"<NextContinuationToken>{keys[PAGE - 1]}</NextContinuationToken>" if more else ""
        self._answer(200, f"<ListBucketResult>{told}</ListBucketResult>".encode())


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    """Serves meanwhile."""
    store = ObjectStore()
    thread = threading.Thread(target=store.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        store.server_close()
        thread.join()


def named(store: ObjectStore, pattern: str) -> list[str]:
    """Paths of objects that match."""
    return [path for path in store.objects if re.search(pattern, path)]
