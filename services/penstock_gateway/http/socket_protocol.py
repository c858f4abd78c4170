"""uvicorn's WebSocket protocol with our limits on handshakes, on slow clients and on what they
send, and with our own shutdown."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from starlette.types import Message, Scope
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from penstock.process import logs
from penstock_gateway.http.errors import INVALID, ErrorBody, ErrorReply
from penstock_gateway.service import Patience

log = logs.get(__name__)

MOST_FRAMES = 1024
"""Frames that a message may come in: empty ones take no part of its bytes."""
SLICE = 8192
"""Bytes that are read in a turn of the event loop."""
_LENGTH = re.compile(rb"\r\ncontent-length: *0*[1-9]", re.IGNORECASE)
_STAY = "penstock.stay"
"""Key of the connection's Stay in a scope's state."""
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}
_TOO_BIG = 1009
_RESTARTS = 1012
"""Codes of RFC 6455, section 7.4.1, and of its registry."""
_LEAVES = "the server is shutting down"


def _nothing() -> None:
    pass


class Stay:
    """What a connection has begun, and finishes before its gateway leaves."""

    __slots__ = ("_asked", "_count", "close")

    def __init__(self, close: Callable[[], None] = _nothing) -> None:
        """close: ends the connection."""
        self.close = close
        self._count = 0
        self._asked = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Around what is to be finished."""
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            if self._asked and not self._count:
                self.close()

    def leave(self) -> None:
        """Closes the connection, now or when nothing is held any more."""
        self._asked = True
        if not self._count:
            self.close()


def stay_of(scope: Scope) -> Stay:
    """Returns the Stay of a WebSocket's connection; an unused one where the server has none."""
    found: Stay | None = scope.get("state", {}).get(_STAY)
    return Stay() if found is None else found


class _Bounded:
    """Mixed into uvicorn's protocol class.

    Cuts a connection whose client leaves it full, or doesn't read the end, for longer than its
    patience; answers handshakes that the parser refuses without a word; reads what comes in slices,
    between which others have their turn: a slice may hold a thousand frames.
    """

    patience = Patience()
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    writable: asyncio.Event
    conn: Any
    frames: list[bytes]
    app_state: dict[str, Any]
    handshake_initiated: bool
    handshake_complete: bool
    close_sent: bool
    disconnected: bool
    read_paused: bool
    """Whether uvicorn has paused reading, while a message waits to be taken."""
    _rest = b""
    """Bytes that came and weren't read yet."""
    _turn: asyncio.Handle | None = None
    """The loop's turn in which the next slice is read."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._stay = Stay(self._end)
        # uvicorn copies this into the scope.
        self.app_state = {**self.app_state, _STAY: self._stay}
        super().connection_made(transport)  # type: ignore[misc]

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._stay.close = _nothing
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        if self.handshake_initiated:
            self._rest += data
            self._read_on()
            return
        # The whole head, which the HTTP protocol has taken already.
        try:
            super().data_received(data)  # type: ignore[misc]
        except ValueError:
            self._refuse(400, "the WebSocket handshake has headers that are not text")
        else:
            if not self.handshake_initiated and _LENGTH.search(data):
                self._refuse(400, "a WebSocket handshake has no body, and no content-length")
            elif not self.handshake_initiated:
                self._refuse(431, f"the WebSocket handshake can't be read: {_head_limits()}")

    def _read_on(self) -> None:
        """Has the next slice read in a turn of its own, and no more bytes come before the last."""
        if self._rest and self._turn is None and not self.read_paused:
            self.transport.pause_reading()
            self._turn = self.loop.call_soon(self._read_slice)

    def _read_slice(self) -> None:
        self._turn = None
        if self.disconnected or self.transport.is_closing():
            self._rest = b""
            return
        part, self._rest = self._rest[:SLICE], self._rest[SLICE:]
        super().data_received(part)  # type: ignore[misc]
        if self._rest:
            self._read_on()
        elif not self.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _resumed(self) -> None:
        """uvicorn may have gone on reading: bytes that have come already are first."""
        if self._rest and not self.read_paused:
            self.transport.pause_reading()
            self._read_on()

    async def receive(self) -> Message:
        message: Message = await super().receive()  # type: ignore[misc]
        self._resumed()
        return message

    def _refuse(self, status: int, message: str) -> None:
        """Answers in place of the application, which isn't asked, and closes."""
        code = "head_too_large" if status == 431 else "invalid_http"
        body = msgspec.json.encode(ErrorReply(ErrorBody(message, INVALID, code=code)))
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.handshake_initiated = self.handshake_complete = self.close_sent = True
        self.transport.write(head.encode() + body)
        self._close()

    def pause_writing(self) -> None:
        super().pause_writing()  # type: ignore[misc]
        self._arm()

    def resume_writing(self) -> None:
        self._disarm()
        super().resume_writing()  # type: ignore[misc]

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()  # type: ignore[misc]
        else:
            self.conn.data_to_send()  # Who doesn't read gets no more pongs to read.

    def handle_cont(self, event: Any) -> None:
        if self.close_sent:
            return
        super().handle_cont(event)  # type: ignore[misc]
        if len(self.frames) > MOST_FRAMES:
            self.frames = []
            self.conn.fail(_TOO_BIG, f"more than {MOST_FRAMES} frames")
            self.handle_parser_exception()  # type: ignore[attr-defined]

    async def send(self, message: Message) -> None:
        await super().send(message)  # type: ignore[misc]
        self._resumed()
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # uvicorn would log an error.

    async def run_asgi(self) -> None:
        await super().run_asgi()  # type: ignore[misc]
        self._arm()  # Closing waits for the client to read what is still buffered: not for ever.

    def shutdown(self) -> None:
        self._stay.leave()

    def _end(self) -> None:
        if self.transport.is_closing():
            return
        if self.handshake_complete and not self.close_sent:
            self.stop_keepalive()  # type: ignore[attr-defined]
            self.queue.put_nowait(  # type: ignore[attr-defined]
                {"type": "websocket.disconnect", "code": _RESTARTS, "reason": _LEAVES}
            )
            self.conn.send_close(_RESTARTS, _LEAVES)
            self.close_sent = True
            self.transport.write(b"".join(self.conn.data_to_send()))
            self._close()
        else:
            super().shutdown()  # type: ignore[misc]

    def _close(self) -> None:
        self.transport.close()
        self._arm()

    def _arm(self) -> None:
        self._disarm()
        if not self.disconnected:
            self._timer = self.loop.call_later(self.patience.reader, self.transport.abort)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _head_limits() -> str:
    return f"at most {MAX_NUM_HEADERS} headers of {MAX_LINE_LENGTH} bytes are allowed"


def protocol_class(patience: Patience) -> type[asyncio.Protocol]:
    """A protocol class with this patience."""
    return type("BoundedSockets", (_Bounded, WebSocketsSansIOProtocol), {"patience": patience})
