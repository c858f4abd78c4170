"""Consecutive messages in a body, framed as in gRPC (a flag, a length, a message), and a stream's
JSON out of server-sent events or lines.

A framed stream that fails ends with a frame of its own, whose message is the error object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.events import StreamForm
from penstock_rpc.status import RefusedCall, failure

FRAMES = StreamForm(b"application/grpc+proto", quiet=True)

_HEAD = struct.Struct(">BI")
_PLAIN = 0
_FAILED = 0x80


def append_frame(out: bytearray, message: bytes) -> None:
    out += _HEAD.pack(_PLAIN, len(message))
    out += message


def failed_frame(error: HTTPError) -> bytes:
    """What a stream ends with that fails."""
    body = error.encoded()
    return _HEAD.pack(_FAILED, len(body)) + body


def frames_in(data: bytes) -> Iterator[tuple[bool, bytes]]:
    """Whether it is a failure, and the message; of each whole frame."""
    at = 0
    while at < len(data):
        flag, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield flag == _FAILED, data[at : at + length]
        at += length


_DATA = b"data: "
_DONE = b"[DONE]"
_ERRORS = (b'{"error":', b'{"type":"error"')
"""How the error objects of the APIs begin that end a stream."""


class JsonStream:
    """Takes pieces as they come, and gives the JSON documents that are whole."""

    def __init__(self, content_type: bytes) -> None:
        self.streams = content_type.startswith((b"text/event-stream", b"application/x-ndjson"))
        """Whether there is more than one document."""
        self._events = content_type.startswith(b"text/event-stream")
        self._rest = b""

    def feed(self, piece: bytes) -> tuple[list[bytes], RefusedCall | None]:
        """The documents, and what the stream ends with if it failed."""
        *whole, self._rest = (self._rest + piece).split(b"\n\n" if self._events else b"\n")
        found: list[bytes] = []
        for each in whole:
            document = _data(each) if self._events else each.strip()
            if document.startswith(_ERRORS):
                return found, failure(document)
            if document and document != _DONE:
                found.append(document)
        return found, None


def _data(event: bytes) -> bytes:
    """The data of an event; other lines are its name, and comments that keep connections alive."""
    for line in event.split(b"\n"):
        if line.startswith(_DATA):
            return line[len(_DATA) :]
    return b""
