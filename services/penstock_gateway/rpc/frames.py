"""Consecutive messages in a body, framed as in gRPC: a flag, a length, a message.

A stream that fails ends with a frame of its own, whose message is the error object.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.events import StreamForm

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
