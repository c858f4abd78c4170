"""The header that goes before every message, and the options of every socket.

A message is [header, payload, *frames]: the header is 17 bytes (boot 8, kind 1, number 8, little
endian), the payload msgpack, the frames raw bytes.  A ROUTER has the session in front of it: the
peer's routing id, 16 random bytes that the peer draws anew for each session.

To a server these are ZeroMQ's parts.  To a client they are joined into one: where a connection
breaks while a DEALER with ZMQ_IMMEDIATE reads, libzmq (4.3.5) drops what is unread at its next
look at the connection, every hundredth part; in the middle of a message it aborts the process for
that.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence

import zmq

from penstock.config.settings import TransportSettings

_HEADER = struct.Struct("<8sBQ")

_LENGTH = struct.Struct("<I")

NO_BOOT = bytes(8)
"""The boot that a peer writes while it doesn't know the engine's: in its Hello."""

MAX_FRAMES = 64
"""Parts of one message, at most."""

HIGH_WATER_MARK = 4096
"""Messages queued towards one peer, at most; a pipe fuller than that ends the session."""


HANDSHAKE_MS = 5000
"""Milliseconds that a connection may take to say who it is; then it gives its descriptor back."""


class FrameKind(enum.IntEnum):
    DATA = 0
    BEAT = 1
    BYE = 2


LEAVING = "the engine core is leaving"
"""Why a session ends that ends in order."""


class BadFrame(Exception):
    """A frame that no sound peer sends: the session is over."""


def pack_header(boot: bytes, kind: FrameKind, number: int) -> bytes:
    return _HEADER.pack(boot, kind, number)


def unpack_header(header: bytes) -> tuple[bytes, FrameKind, int]:
    """(boot, kind, number). Raises BadFrame."""
    try:
        boot, kind, number = _HEADER.unpack(header)
        return boot, FrameKind(kind), number
    except (struct.error, ValueError) as error:
        raise BadFrame(f"a header that can't be read: {error}") from None


def join(header: bytes, parts: Sequence[bytes]) -> bytes:
    """Joins the header and the other parts, each after its length, into one message part."""
    pieces = [header]
    for part in parts:
        pieces += (_LENGTH.pack(len(part)), part)
    return b"".join(pieces)


def split(message: bytes) -> list[bytes]:
    """[header, *parts] of what `join` made. Raises BadFrame."""
    parts, at = [message[: _HEADER.size]], _HEADER.size
    while at < len(message):
        begin = at + _LENGTH.size
        if len(parts) >= MAX_FRAMES or begin > len(message):
            raise BadFrame("a message with ambiguous parts")
        at = begin + _LENGTH.unpack_from(message, at)[0]
        if at > len(message):
            raise BadFrame("a message that ends before its last part does")
        parts.append(message[begin:at])
    return parts


def set_common_options(socket: zmq.Socket[bytes], settings: TransportSettings) -> None:
    """Bounded queues, frames and handshakes, and no lingering after close."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
