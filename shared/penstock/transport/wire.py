"""The header that goes before every message with its number in the session, and the options of
every socket.

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

_READABLE = int(zmq.POLLIN)
_LAST, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Flags as numbers: combining ZeroMQ's takes longer than sending."""

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


class Numbering:
    """Numbers both directions of a session from 0 and records when the peer was last heard from.

    boot: what outgoing headers carry.  expected_boot: what incoming ones must carry; None while
    unknown (at a client, before the engine's first message).  At a server, told: the owner was
    notified of the session; over: it gets no more of its events.
    """

    __slots__ = (
        "_received",
        "_sent",
        "boot",
        "expected_boot",
        "last_heard",
        "last_sent",
        "over",
        "told",
    )

    def __init__(self, now: float, *, boot: bytes, expected_boot: bytes | None) -> None:
        self.boot = boot
        self.expected_boot = expected_boot
        self.last_heard = now
        self.last_sent = now
        self.told = False
        self.over = False
        self._sent = 0
        self._received = 0

    def seal(self, kind: FrameKind, now: float) -> bytes:
        """The header of the next outgoing message."""
        header = pack_header(self.boot, kind, self._sent)
        self._sent += 1
        self.last_sent = now
        return header

    def accept(self, boot: bytes, number: int, now: float) -> None:
        """Checks an incoming message's number; raises BadFrame when one before it is missing."""
        if number != self._received:
            raise BadFrame(f"message {number} came where {self._received} was due")
        first_of_peer = number == 0 and boot == NO_BOOT
        if self.expected_boot is not None and boot != self.expected_boot and not first_of_peer:
            raise BadFrame("a message of another engine boot")
        self._received += 1
        self.last_heard = now

    def silent(self, now: float, timeout: float) -> bool:
        return now - self.last_heard > timeout


def join(header: bytes, parts: Sequence[bytes]) -> bytes:
    """Joins the header and the other parts, each after its length, into one message part."""
    pieces = [header]
    for part in parts:
        pieces += (_LENGTH.pack(len(part)), part)
    return b"".join(pieces)


def split(message: bytes) -> list[bytes]:
    """Returns [header, *parts] of what `join` made. If it is a memoryview, the part after the
    header is one too, not a copy: only decode it. Raises BadFrame."""
    parts, at = [bytes(message[: _HEADER.size])], _HEADER.size
    while at < len(message):
        begin = at + _LENGTH.size
        if len(parts) >= MAX_FRAMES or begin > len(message):
            raise BadFrame("a message with ambiguous parts")
        at = begin + _LENGTH.unpack_from(message, at)[0]
        if at > len(message):
            raise BadFrame("a message that ends before its last part does")
        part = message[begin:at]
        parts.append(part if len(parts) == 1 else bytes(part))
    return parts


def is_readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has come. After a no, the socket's descriptor tells of the next one."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)


def send(socket: zmq.Socket[bytes], parts: Sequence[bytes | memoryview]) -> None:
    """Queues a message. Raises zmq.Again where there is no room for it."""
    *first, last = parts
    for part in first:
        socket.send(part, _MORE)
    socket.send(last, _LAST)


def set_common_options(socket: zmq.Socket[bytes], settings: TransportSettings) -> None:
    """Bounded queues, frames and handshakes, and no lingering after close."""
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.setsockopt(zmq.MAXMSGSIZE, settings.max_message_bytes)
