"""Accepting connections: as many as leave file descriptors for everything else.

Event loops accept by themselves, but a process that has no descriptors left neither answers nor
logs whom it drops, and can't open a file or reach its engine core.  The kernel gives a new
connection the lowest free number, so a number says how many descriptors are in use at least.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from penstock.process import logs
from penstock_gateway.http.errors import HTTPError, unavailable

log = logs.get(__name__)

BACKLOG = 4096
"""Connections that wait in the kernel."""
A_TURN = 16
"""Connections accepted in a turn of the event loop."""
MOST_RESERVED = 256
"""Descriptors that are left to others, at most; and no more than a quarter of the limit."""
LEAST_IDLE = 1.0
"""Seconds after which the client of an idle connection probably has no request on its way."""
REFUSAL = 1.0
"""Seconds that a client has to send the request that is refused, and to read the answer."""
PAUSE = 0.1
"""Seconds until the next attempt, where the kernel gave no connection."""
OTHERS_TURN = 1.0
"""Seconds in which new connections are left to other gateways, where this one has no room. Those
that still wait then are refused: the others have no room either."""

_FULL = (
    "connections hold nearly all file descriptors that the limit (ulimit -n) allows: idle ones are"
    " closed, and where there are none, new ones are answered with 503"
)


class WaitingConnection(Protocol):
    """A connection that waits for its client: for the next request, or to agree on keys."""

    def timeout_keep_alive_handler(self) -> None:
        """Closes it, as uvicorn does when it has waited for too long."""


class IdleConnections:
    """Idle connections of a server, the one that has waited longest first."""

    def __init__(self) -> None:
        self._since: dict[WaitingConnection, float] = {}

    def add(self, connection: WaitingConnection) -> None:
        """Adds a connection that begins to wait."""
        self._since.pop(connection, None)
        self._since[connection] = time.monotonic()

    def discard(self, connection: WaitingConnection) -> None:
        """Removes a connection that waits no more."""
        self._since.pop(connection, None)

    def close_oldest(self) -> bool:
        """Whether there was one that has waited for LEAST_IDLE."""
        oldest = next(iter(self._since), None)
        if oldest is None or time.monotonic() - self._since[oldest] < LEAST_IDLE:
            return False
        del self._since[oldest]
        oldest.timeout_keep_alive_handler()
        return True


class Acceptor:
    """Accepts from a listening socket; to uvicorn, one of its `servers`.

    A reserve of descriptors is left to the rest of the process.  A connection that would need one
    of it takes the place of the one that has been idle longest, or is answered with 503.  In the
    second half of the reserve there is no waiting for the request to be answered.  Where other
    gateways accept from the same socket, they have their turn before.
    """

    def __init__(
        self,
        sock: socket.socket,
        serve: Callable[[], asyncio.Protocol],
        idle: IdleConnections,
        refused: Callable[[], None],
        tls: ssl.SSLContext | None = None,
        tls_seconds: float = 30.0,
        *,
        shared: bool = False,
    ) -> None:
        """serve: makes the protocol of a connection.  refused: called for each answer of 503.
        tls_seconds: that a client may take to agree on keys.  shared: other processes accept from
        the socket, too.  Needs a running event loop."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._serve = serve
        self._idle = idle
        self._refused = refused
        self._tls = tls
        self._tls_seconds = None if tls is None else tls_seconds
        self._shared = shared
        self._others_had_theirs = False
        self._connecting: set[asyncio.Task[object]] = set()
        self._paused: asyncio.TimerHandle | None = None
        self._full = logs.Seldom(log.warning)
        sock.setblocking(False)
        sock.listen(BACKLOG)
        self._loop.add_reader(sock, self._accept)

    def close(self) -> None:
        """Stops accepting. The socket is left to its creator."""
        self._loop.remove_reader(self._socket)
        if self._paused is not None:
            self._paused.cancel()

    async def wait_closed(self) -> None:
        """Returns at once: connections are their protocols' matter."""

    def _accept(self) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        leaves_to_others = self._shared and not self._others_had_theirs
        self._others_had_theirs = False
        for _ in range(A_TURN):
            if leaves_to_others and self._is_full(limit):
                self._others_had_theirs = True
                self._wait(OTHERS_TURN)
                return
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                self._pause(error)
                return
            if limit == resource.RLIM_INFINITY:
                self._connect(connection, self._serve)
            else:
                self._take(connection, limit)

    def _pause(self, error: OSError) -> None:
        self._full(_FULL, why=error.strerror)
        self._idle.close_oldest()
        self._wait(PAUSE)

    def _wait(self, seconds: float) -> None:
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_later(seconds, self._resume)

    def _is_full(self, limit: int) -> bool:
        """Whether the next connection would need a descriptor of the reserve."""
        if limit == resource.RLIM_INFINITY:
            return False
        try:
            number = os.dup(self._socket.fileno())
        except OSError:
            return True
        os.close(number)
        return number >= limit - reserve_of(limit)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._socket, self._accept)

    def _take(self, connection: socket.socket, limit: int) -> None:
        """limit: file descriptors of this process."""
        number = connection.fileno()
        reserve = reserve_of(limit)
        if number < limit - reserve:
            self._connect(connection, self._serve)
            return
        self._full(_FULL, limit=limit, reserved=reserve)
        room = self._idle.close_oldest()
        if number >= limit - reserve // 2:
            self._turn_away(connection)
        elif room:
            self._connect(connection, self._serve)
        else:
            self._refused()
            self._connect(connection, _Refusal)

    def _turn_away(self, connection: socket.socket) -> None:
        """Answers without waiting for the request, and closes."""
        with connection:
            if self._tls is not None:
                return
            try:
                connection.setblocking(False)
                connection.send(_ANSWER)
                # Closing with something unread would take the answer back.
                connection.recv(65_536)
            except OSError:
                return
        self._refused()

    def _connect(
        self, connection: socket.socket, protocol: Callable[[], asyncio.BaseProtocol]
    ) -> None:
        task = self._loop.create_task(
            self._loop.connect_accepted_socket(
                protocol, connection, ssl=self._tls, ssl_handshake_timeout=self._tls_seconds
            )
        )
        self._connecting.add(task)
        if self._tls is None:
            task.add_done_callback(self._connected)
            return
        waiting = _Handshake(task)
        self._idle.add(waiting)

        def connected(task: asyncio.Task[object]) -> None:
            self._idle.discard(waiting)
            self._connected(task)

        task.add_done_callback(connected)

    def _connected(self, task: asyncio.Task[object]) -> None:
        self._connecting.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a connection failed before its first request", why=repr(error))


def reserve_of(limit: int) -> int:
    """Descriptors that are left to others, of so many."""
    return min(MOST_RESERVED, limit // 4)


class _Handshake:
    """A TLS handshake. Until it is over, a connection has no protocol that could close it."""

    def __init__(self, task: asyncio.Task[object]) -> None:
        self._task = task

    def timeout_keep_alive_handler(self) -> None:
        """Ends the handshake, and so the connection."""
        self._task.cancel()


class _Refusal(asyncio.Protocol):
    """Answers a connection's first request with 503, whatever it is, and closes."""

    _transport: asyncio.Transport
    _timer: asyncio.TimerHandle
    _answered = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(REFUSAL, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._answered = True
        self._transport.write(_ANSWER)
        if self._transport.can_write_eof():
            # What else the client sends is read, until it closes: unread, it would take the answer
            # back.
            self._transport.write_eof()
        else:
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.cancel()


def _whole(error: HTTPError) -> bytes:
    """An error as a response of HTTP/1.1 that ends its connection."""
    body = error.encoded()
    lines = [
        f"HTTP/1.1 {error.status} Service Unavailable",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *(f"{name}: {value}" for name, value in error.headers),
        "connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


_ANSWER = _whole(
    unavailable(
        "the server has no room for another connection; try again later", "too_many_connections", 1
    )
)
