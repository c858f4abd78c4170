"""The HTTP server of /metrics and the health checks, in threads of its own next to the process's
event loop.

GET only, one request a connection, everything bounded: the head's size and the time that it may
take, and the connections at once, of which the oldest makes way for one more.  So clients that hold
connections open can't keep a health check out.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from penstock.metrics.health import answer
from penstock.net import listener
from penstock.process import logs

log = logs.get(__name__)

MAX_CONNECTIONS = 16
MAX_HEAD_BYTES = 16_384
PATIENCE = 5.0
"""Seconds that a connection may take in all."""
BACKLOG = 64

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class Reply(NamedTuple):
    """What a page answers."""

    status: int
    body: bytes
    content_type: str


Page = Callable[[], Reply]
"""Called in a thread of the port, several at once."""


def health_page(reason: Callable[[], str | None]) -> Page:
    """A health check. reason: why it is to fail, or None."""

    def page() -> Reply:
        return Reply(*answer(reason()), "application/json")

    return page


@contextmanager
def serving(sock: socket.socket, pages: Mapping[str, Page]) -> Iterator[None]:
    """Answers meanwhile, by path, at a bound socket, which is closed at the end."""
    port = Port(sock, pages)
    port.start()
    log.info("metrics port", url=listener.url(*listener.reachable_address(sock)))
    try:
        yield
    finally:
        port.close()


def bind(host: str, port: int, flag: str) -> socket.socket:
    """A bound socket. Raises StartupError, which names `flag`, where that is not possible."""
    return listener.bind(host, port, flags=("--metrics-host", flag))


class Port:
    """pages: by path. Threads are daemons: they never keep the process from leaving."""

    def __init__(self, sock: socket.socket, pages: Mapping[str, Page]) -> None:
        self._listener = sock
        self._pages = pages
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}
        """Connections, the oldest first."""
        self._closed = False

    def start(self) -> None:
        self._listener.listen(BACKLOG)
        threading.Thread(target=self._accept, name="metrics-port", daemon=True).start()

    def close(self) -> None:
        """Ends all connections. What is being answered may be cut."""
        with self._lock:
            self._closed = True
            left = [self._listener, *self._open]
        for sock in left:
            _shut(sock)
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                # Out of files, or a peer that had gone already.
                log.warning("metrics port: no connection", reason=str(error))
                time.sleep(0.1)
                continue
            self._admit(connection)
            threading.Thread(
                target=self._serve, args=(connection,), name="metrics-answer", daemon=True
            ).start()

    def _admit(self, connection: socket.socket) -> None:
        with self._lock:
            oldest = next(iter(self._open)) if len(self._open) >= MAX_CONNECTIONS else None
            if oldest is not None:
                del self._open[oldest]
            self._open[connection] = None
        if oldest is not None:
            _shut(oldest)

    def _serve(self, connection: socket.socket) -> None:
        try:
            over = time.monotonic() + PATIENCE
            reply = self._reply(_read_head(connection, over))
            _send(connection, reply, over)
        except OSError:
            pass  # It went, or its time is over.
        finally:
            with self._lock:
                self._open.pop(connection, None)
            connection.close()

    def _reply(self, head: bytes | int) -> Reply:
        if isinstance(head, int):
            return _words(head)
        parts = head.split(b"\r\n", 1)[0].split(b" ")
        if len(parts) != 3 or not parts[2].startswith(b"HTTP/1."):
            return _words(400)
        if parts[0] != b"GET":
            return _words(405)
        page = self._pages.get(parts[1].split(b"?", 1)[0].decode("latin-1"))
        if page is None:
            return _words(404)
        try:
            return page()
        except Exception:
            log.error("internal error", exception=True, handling=parts[1].decode("latin-1"))
            return _words(500)


def _read_head(connection: socket.socket, over: float) -> bytes | int:
    """A request's head, or the status of why it is none."""
    head = b""
    while b"\r\n\r\n" not in head:
        if len(head) > MAX_HEAD_BYTES:
            return 431
        left = over - time.monotonic()
        if left <= 0:
            return 408
        connection.settimeout(left)
        try:
            piece = connection.recv(4096)
        except TimeoutError:
            return 408
        if not piece:
            raise ConnectionError("the peer left")
        head += piece
    return head


def _words(status: int) -> Reply:
    return Reply(status, f"{_REASONS[status]}\n".encode(), "text/plain; charset=utf-8")


def _send(connection: socket.socket, reply: Reply, over: float) -> None:
    allow = "Allow: GET\r\n" if reply.status == 405 else ""
    head = (
        f"HTTP/1.1 {reply.status} {_REASONS[reply.status]}\r\n"
        f"Content-Type: {reply.content_type}\r\n"
        f"Content-Length: {len(reply.body)}\r\n"
        f"{allow}Cache-Control: no-store\r\nConnection: close\r\n\r\n"
    )
    connection.settimeout(max(over - time.monotonic(), 0.1))
    connection.sendall(head.encode() + reply.body)
    # A peer that is still sending (a body) would lose our answer to a reset.
    connection.shutdown(socket.SHUT_WR)
    connection.settimeout(0.5)
    for _ in range(16):
        if not connection.recv(4096):
            return


def _shut(sock: socket.socket) -> None:
    """Wakes the thread that waits in it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
