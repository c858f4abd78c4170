"""Writing to a connection at once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

Write = Callable[[bytes], None]

_encode = msgspec.json.Encoder().encode


class PromptWrite(Protocol):
    """Writes to a connection."""

    def write(self, data: bytes) -> None: ...

    def write_chunk(self, piece: bytes | bytearray) -> bool:
        """Writes a piece of a body with chunked encoding (RFC 9112, 7.1); True."""

    def text(self, before: bytes, after: bytes) -> TextWrite | None:
        """What writes events with a JSON string between `before` and `after`, as pieces of such a
        body; None where the transport writes."""


def prompt_write(transport: asyncio.Transport) -> PromptWrite:
    """What writes to the transport's socket in this moment, where that can be, in order with what
    the transport itself writes.

    uvloop keeps what is written until the end of the event loop's turn, so the first of many
    streams would wait for the work on all others.  An encrypted connection has to be written by its
    transport, and asyncio's own transports write at once anyway.
    """
    is_uvloop = type(transport).__module__.partition(".")[0] == "uvloop"
    if not is_uvloop or transport.get_extra_info("sslcontext") is not None:
        return TransportWrite(transport)
    return _SocketWrite(transport)


class TransportWrite:
    """Leaves the moment to the transport."""

    __slots__ = ("write",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self.write: Write = transport.write

    def write_chunk(self, piece: bytes | bytearray) -> bool:
        self.write(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")))
        return True

    def text(self, before: bytes, after: bytes) -> None:
        return None


class _SocketWrite:
    """What the socket doesn't take, and all that comes after it, goes to the transport, whose
    bounds and errors hold for it. The descriptor is open for as long as that isn't closing."""

    __slots__ = ("_descriptor", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._descriptor: int = transport.get_extra_info("socket").fileno()

    def write_chunk(self, piece: bytes | bytearray) -> bool:
        self.write(b"".join((b"%x\r\n" % len(piece), piece, b"\r\n")))
        return True

    def text(self, before: bytes, after: bytes) -> TextWrite:
        return TextWrite(self._transport, self._descriptor, before, after)

    def write(self, data: bytes) -> None:
        transport = self._transport
        if transport.is_closing() or transport.get_write_buffer_size():
            transport.write(data)
            return
        try:
            sent = os.write(self._descriptor, data)
        except OSError:
            sent = 0  # It is full; or broken, which the transport meets as well.
        if sent < len(data):
            transport.write(data[sent:])


class TextWrite:
    """Writes chunks of a body, each an event that differs from the others in one JSON string only:
    a TextSink of a stream's plain text, in as few steps as there can be.

    before, after: of the string, in each event.  tokens: of all that was taken.  last: when some
    was, by time.perf_counter; 0: never.  seconds: spent in writing.
    """

    __slots__ = (
        "_after",
        "_before",
        "_descriptor",
        "_length",
        "_taken",
        "_transport",
        "last",
        "seconds",
        "tokens",
    )

    def __init__(
        self, transport: asyncio.Transport, descriptor: int, before: bytes, after: bytes
    ) -> None:
        self._transport = transport
        self._descriptor = descriptor
        self._before = before
        self._after = after + b"\r\n"
        self._length = len(before) + len(after)
        self._taken = b""
        self.tokens = 0
        self.last = self.seconds = 0.0

    def take(self, text: str, tokens: int, now: float) -> bool:
        """False where the transport has something to write, or is closing."""
        transport = self._transport
        if self._taken or transport.get_write_buffer_size() or transport.is_closing():
            return False
        if text:
            said = _encode(text)
            size = b"%x\r\n" % (self._length + len(said))
            self._taken = b"".join((size, self._before, said, self._after))
        self.tokens += tokens
        self.last = now
        return True

    def put(self) -> None:
        """Writes to the socket; what that doesn't take goes to the transport."""
        begun = time.perf_counter()
        taken, self._taken = self._taken, b""
        try:
            sent = os.write(self._descriptor, taken)
        except OSError:
            sent = 0
        if sent < len(taken):
            try:
                self._transport.write(taken[sent:])
            except Exception:  # Others' text is to go out after it; this stream isn't whole.
                self._transport.abort()
        self.seconds += time.perf_counter() - begun


class OneWrite:
    """Stands in for a transport, for as long as one thing is written: keeps the pieces, and writes
    them as one."""

    __slots__ = ("_pieces", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport, write: Write) -> None:
        """write: to the same connection, see `prompt_write`."""
        self._transport = transport
        self._write = write
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._pieces.append(data)

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        """Closes the transport; what was written before still goes out."""
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        """Writes what there is."""
        if self._pieces:
            whole = b"".join(self._pieces)
            self._pieces.clear()
            self._write(whole)
