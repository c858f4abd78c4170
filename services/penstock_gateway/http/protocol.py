"""uvicorn's HTTP protocol with our limits: on a request's headers, and on slow clients."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock.process import logs
from penstock_gateway.http.accepting import IdleConnections
from penstock_gateway.http.errors import HTTPError, as_http_error, head_too_large
from penstock_gateway.http.events import ROOM, Piece, Room, no_text
from penstock_gateway.http.prompt_write import (
    OneWrite,
    PromptWrite,
    TransportWrite,
    prompt_write,
)
from penstock_gateway.service import Patience

log = logs.get(__name__)
_parser_log = logging.getLogger("uvicorn.parser")
_parser_log.setLevel(logging.ERROR)
"""uvicorn warns of each request that isn't HTTP: any client could fill the disk. See `refuse`."""
_note_refusal = logs.Seldom(log.warning)

MOST_WAITING = 100
"""Requests of a connection that may wait for the answer to the one before them."""


class _AnyLength(int):
    """Length of a body that has none: whatever comes of it, nothing is missing."""

    def __sub__(self, other: int) -> _AnyLength:
        return self

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _host_fault(version: str, url: bytes, headers: list[tuple[bytes, bytes]]) -> str:
    """What is wrong with a request's Host (RFC 9112, 3.2), or nothing."""
    hosts = [value for name, value in headers if name == b"host"]
    if len(hosts) > 1:
        return "the request has more than one Host"
    if not hosts and version != "1.0":
        return "the request has no Host"
    scheme, separator, rest = url.partition(b"://")
    if separator and scheme.lower() in (b"http", b"https"):
        named = rest.partition(b"/")[0].partition(b"?")[0]
        if hosts and named.lower() != hosts[0].lower():
            return "the request's target names another host than its Host"
    return ""


def _coding_fault(headers: list[tuple[bytes, bytes]]) -> str:
    """What can't be undone of what was done to a body for its way, or nothing (RFC 9112, 6.1)."""
    codings = b", ".join(value for name, value in headers if name == b"transfer-encoding")
    if codings.strip().lower() in (b"", b"chunked"):
        return ""
    shown = codings[:100].decode("latin-1")
    return f"the body has the transfer-encoding {shown!r}; allowed: chunked"


class BoundedHttp(HttpToolsProtocol):
    """Cuts a connection whose client leaves it full, or sends no complete request head, for longer
    than its patience; refuses with the error object what is not HTTP."""

    patience = Patience()
    max_head_bytes = 65_536
    """Request line and headers together. Here it stops a head, or the trailers of a chunked body,
    that don't end; a head that has come whole is measured by the application (see boundary)."""
    idle = IdleConnections()
    """All connections of the server that wait for a request."""
    cycle: Any
    _lost = False
    _prompt: PromptWrite
    _inside_head = False
    _progress = False
    _unfinished = 0
    _received = b""
    _fault = ""
    """What is wrong with a head that the parser accepts."""
    _answered: Any = None

    def connection_made(  # type: ignore[override]
        self, transport: asyncio.Transport
    ) -> None:
        self.logger = _parser_log
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._room = Room(
            full=False,
            write=self.write_piece,
            together=self.write_together,
            close=transport.close,
        )
        # uvicorn copies this into the scope of each request.
        self.app_state = {**self.app_state, ROOM: self._room}
        self._prompt = prompt_write(transport)
        super().connection_made(transport)
        self._arm("head", self.patience.head)
        self.idle.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        # uvicorn tells the latest request, which others may be answered before.
        answered, self._answered = self._answered, None
        self.pipeline.clear()
        if answered is not None and not answered.response_complete:
            answered.disconnected = True
            answered.message_event.set()
        self._lost = True
        self.idle.discard(self)
        for name in list(self._timers):
            self._disarm(name)
        super().connection_lost(exc)
        # uvicorn leaves its timer where the connection was reset, as load balancers end them.
        self._unset_keepalive_if_required()
        # Each of these holds the protocol in turn: without them it goes at once, with all that its
        # last request was made of, and not when the garbage collector comes by.
        self._room.leave()
        self._prompt = TransportWrite(self.transport)
        self.cycle = None

    def data_received(self, data: bytes) -> None:
        self._received = data
        self.idle.discard(self)
        try:
            super().data_received(data)
        except MemoryError as error:
            self.refuse(as_http_error(error))
        self._received = b""
        if self.transport.is_closing():
            return
        if self.unfinished(len(data)) > self.max_head_bytes:
            self.refuse_head()
        elif not self._inside_head:
            self._disarm("head")
        elif "head" not in self._timers:
            self._arm("head", self.patience.head)

    def unfinished(self, received: int) -> int:
        """Bytes that the parser holds, because what they are part of has not ended. received: of
        them, so many are new."""
        self._unfinished = 0 if self._progress else self._unfinished + received
        self._progress = False
        return self._unfinished

    def write_piece(self, piece: Piece) -> bool:
        """Puts a piece of the body straight onto the connection; False where it can't."""
        # The latest request's cycle: where another one waits in the pipe, its response has not
        # begun, and has no encoding yet.
        cycle = self.cycle
        if cycle is None or not cycle.chunked_encoding:
            return False
        if cycle.response_complete or cycle.disconnected:
            return False
        # The same holds until the response, or the connection, has ended.
        self._room.write, self._room.text = self._prompt.write_chunk, self._prompt.text
        return self._prompt.write_chunk(piece)

    def write_together(self, put: Callable[[], None]) -> None:
        """Calls `put`, and puts all that this sends onto the connection at once."""
        cycle = self.cycle
        if cycle is None:
            put()
            return
        # Of the latest request: where another one is answered, the transport gets it as ever.
        whole = OneWrite(self.transport, self._prompt.write)
        cycle.transport = whole
        try:
            put()
        finally:
            cycle.transport = self.transport
            whole.flush()

    def pause_writing(self) -> None:
        self._room.full = True
        super().pause_writing()
        self._arm("reader", self.patience.reader)

    def resume_writing(self) -> None:
        self._room.full = False
        self._disarm("reader")
        super().resume_writing()

    def on_response_complete(self) -> None:
        if not self._lost:
            self._room.write, self._room.text = self.write_piece, no_text
        super().on_response_complete()
        if self.timeout_keep_alive_task is not None:
            self.idle.add(self)

    def timeout_keep_alive_handler(self) -> None:
        # Closing waits for the client to read what is still buffered: not for ever.
        super().timeout_keep_alive_handler()
        self._arm("reader", self.patience.reader)

    def send_400_response(self, msg: str) -> None:
        stopped = sys.exception()
        if stopped is not None and isinstance(stopped.__context__, MemoryError):
            raise stopped.__context__  # The parser knows of it, and blames the bytes.
        self.refuse(HTTPError(400, self._fault or msg, code="invalid_http"))

    def refuse_head(self) -> None:
        """Answers with 431, and closes."""
        self.refuse(head_too_large(self.max_head_bytes))

    def refuse(self, error: HTTPError) -> None:
        """Answers outside of any ASGI exchange, and closes."""
        peer = self.client[0] if self.client else ""
        why = error.body.message
        _note_refusal("a request that can't be read was refused", why=why, peer=peer)
        cycle = self._answered
        if cycle is not None and cycle.response_started and not cycle.response_complete:
            self.transport.abort()  # An answer is on its way: nothing can be said any more.
            return
        body = error.encoded()
        headers = dict(error.headers) | {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join((*lines, "", "")).encode() + body)
        self.transport.close()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def handle_websocket_upgrade(self) -> None:
        answered = self._answered
        if answered is not None and not answered.response_complete:
            self.transport.abort()  # The connection is still an answer's.
        else:
            super().handle_websocket_upgrade()

    def _unsupported_upgrade_warning(self) -> None:
        """The parser stops at a request that asks for another protocol. A server may ignore
        that (RFC 9110, 7.8), so the request is read again without it, body and all."""
        stopped = sys.exception()
        if self.parser.get_method() == b"CONNECT" or stopped is None:
            self.send_400_response("CONNECT is not supported")
            return
        rest = self._received[stopped.args[0] :]
        version = self.parser.get_http_version().encode()
        head = [self.parser.get_method(), b" ", self.url, b" HTTP/", version, b"\r\n"]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [each.strip() for each in value.split(b",")]
                value = b", ".join(each for each in tokens if each.lower() != b"upgrade")
            if name != b"upgrade":
                head += [name, b": ", value, b"\r\n"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._received = b"".join((*head, b"\r\n", rest))
        HttpToolsProtocol.data_received(self, self._received)

    def _passed_over(self) -> bool:
        """Whether the request that is parsed will be read again, or refused."""
        return self.parser.should_upgrade() and not self._should_upgrade()

    def on_message_begin(self) -> None:
        self._inside_head = self._progress = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._inside_head = False
        self._progress = True
        version = self.parser.get_http_version()
        self._fault = _host_fault(version, self.url, self.headers)
        self._fault = self._fault or _coding_fault(self.headers)
        if len(self.pipeline) >= MOST_WAITING:
            self._fault = f"more than {MOST_WAITING} requests wait on this connection"
        if self._fault:
            raise ValueError(self._fault)
        if self._passed_over():
            return
        if version == "1.0":
            # Who speaks it would take the 100 for the answer (RFC 9110, 10.1.1).
            self.expect_100_continue = False
        super().on_headers_complete()
        if version == "1.0" and self.scope["type"] == "http" and self.cycle is not None:
            # Chunks are HTTP/1.1's: the body ends with the connection.
            self.cycle.chunked_encoding = False
            self.cycle.expected_content_length = _AnyLength(sys.maxsize)

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._progress = True
        if not self._passed_over():
            super().on_message_complete()

    def _arm(self, name: str, seconds: float) -> None:
        self._disarm(name)
        if self._lost:
            return  # It would hold the connection, and all that hangs on it, for nothing.
        self._timers[name] = self.loop.call_later(seconds, self.transport.abort)

    def _disarm(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def protocol_class(patience: Patience, max_head_bytes: int = 65_536) -> type[asyncio.Protocol]:
    """A server's protocol class, with this patience and bound."""
    own = {"patience": patience, "max_head_bytes": max_head_bytes, "idle": IdleConnections()}
    return type(BoundedHttp.__name__, (BoundedHttp,), own)
