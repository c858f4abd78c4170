"""The numbers and clocks of one session: pure bookkeeping, no socket."""

from __future__ import annotations

from penstock.transport.wire import NO_BOOT, BadFrame, FrameKind, pack_header


class Numbering:
    """Numbers both directions of a session from 0 and knows when the peer was last heard.

    boot: what outgoing headers carry.  expected_boot: what incoming ones must carry; None while
    unknown (at a client, before the engine's first message).  At a server, told: the owner knows
    of the session; over: it is to hear no more of it.
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
        """Takes note of an incoming message; BadFrame when one before it is missing."""
        if number != self._received:
            raise BadFrame(f"message {number} came where {self._received} was due")
        first_of_peer = number == 0 and boot == NO_BOOT
        if self.expected_boot is not None and boot != self.expected_boot and not first_of_peer:
            raise BadFrame("a message of another engine boot")
        self._received += 1
        self.last_heard = now

    def silent(self, now: float, timeout: float) -> bool:
        return now - self.last_heard > timeout
