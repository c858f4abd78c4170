"""The dialling end (front ends and workers): one session at a time, a new one after each end."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.transport.curve import client_curve
from penstock.transport.events import Ended, Event, Opened, Received
from penstock.transport.inbound import Inbound, Taken
from penstock.transport.wire import (
    NO_BOOT,
    BadFrame,
    FrameKind,
    Numbering,
    is_readable,
    pack_header,
    send,
    set_common_options,
    split,
    unpack_header,
)

Incoming = TypeVar("Incoming")

FIRST_RETRY = 0.05
LAST_RETRY = 1.0
LAST_REFUSED_RETRY = 10.0
"""Seconds between attempts while an engine core answers and can't be used, which seldom passes by
itself."""
LARGE = 1 << 16
"""Bytes of a message from which on it is read where ZeroMQ has it."""
DIALLING_PACE = 0.02
"""Seconds between looks at a connection that is not up yet."""
EARLIEST = 0.5
"""The least fraction of a pause before dialling again: clients that have lost the same engine core
don't come back at the same moment."""
ALONG = 0.8
"""Beat intervals of silence after which a beat is sent right after receiving from the other side:
then this process is awake anyway, and so is the engine core, which has just sent to all its front
ends and gets their beats together."""


class SessionClient(Inbound[Incoming]):
    """A session with the engine core, renewed whenever it ends.

    Each session dials with a new DEALER under a fresh random identity, so that frames of an ended
    one can't be mistaken for its successor's.  `hello()` makes the first message of each.  The
    owner calls `take` when `socket` is readable and at the latest after `wait_hint` seconds.  Only
    the owner opens and closes sockets: it may be waiting for the file descriptor.

    On this side `session` in events is b"": there is only one.  last_reason: why the last session,
    or the last attempt at one, ended.  Raises StartupError as `curve.client_curve` does.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        decoder: msgspec.msgpack.Decoder[Incoming],
        hello: Callable[[], Any],
        settings: TransportSettings,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._curve = client_curve(endpoint, settings)
        super().__init__(decoder, settings)
        self._hello = hello
        self._redial_at = 0.0
        self._retry = self._refused_retry = FIRST_RETRY
        self._numbering: Numbering | None = None
        self._opened = False
        self._last = False
        """Whether the end of the session is in the inbox: nothing is read or sent any more."""
        self._given_up = ""
        """Why the heartbeat has found the session to be over, if it has."""
        self.last_reason = ""
        self.socket: zmq.Socket[bytes] | None = None

    @property
    def opened(self) -> bool:
        """Whether a session is open: the engine has answered."""
        return self._opened and not self._last

    @property
    def boot(self) -> bytes | None:
        """The engine's boot in the open session."""
        return (
            self._numbering.expected_boot if self._numbering is not None and self._opened else None
        )

    @property
    def more(self) -> bool:
        return super().more or bool(self._given_up)

    def wait_hint(self, now: float) -> float:
        """Seconds that the owner may wait on `socket` before its next turn."""
        if self.more:
            return 0.0
        if self.socket is None:
            return max(0.0, self._redial_at - now)
        if not self._opened or self._numbering is None:
            return DIALLING_PACE
        beats = self._numbering.last_sent + self._settings.beat_interval
        silent = self._numbering.last_heard + self._settings.peer_timeout
        return max(0.0, min(beats, silent) - now)

    def due(self) -> bool:
        """Whether a turn would find something now. A thread that has sent asks this, with the lock:
        the descriptor of `socket` may already have signalled what came meanwhile."""
        with self.lock:
            return self.more or (self.socket is not None and is_readable(self.socket))

    def send(self, message: Any, frames: Sequence[bytes | memoryview] = ()) -> bool:
        """Queues a message; False when there is no open session (nothing was sent)."""
        if not self.opened:
            return False
        payload = self._encoder.encode(message)
        with self.lock:
            if not self.opened or self._numbering is None:
                return False
            return self._put([self._numbering.seal(FrameKind.DATA, self._now), payload, *frames])

    def end(self, reason: str) -> None:
        """Ends the session; the next turn reports it, and a later one dials again. Nothing else of
        it is passed on."""
        with self.lock:
            was_open = self._opened
            self.last_reason = reason
            self._hang_up()
            self._redial_at = self._now + _some_of(self._retry)
            self._retry = min(self._retry * 2, LAST_RETRY)
            self._refused_retry = FIRST_RETRY
            if was_open:
                self._ended.append(Ended(b"", reason))

    def refuse(self, reason: str) -> None:
        """Ends the session with an engine core that answered with what can't be used: each time in
        a row it is dialled later."""
        with self.lock:
            delay = self._refused_retry
            self.end(reason)
            self._redial_at = self._now + _some_of(delay)
            self._refused_retry = min(delay * 2, LAST_REFUSED_RETRY)

    def close(self) -> None:
        """Says goodbye and closes the socket for good."""
        with self.lock:
            self._hang_up(linger=100)
            self._redial_at = float("inf")

    def _hang_up(self, linger: int = 0) -> None:
        if self.socket is not None:
            if self._opened:
                bye = [pack_header(NO_BOOT, FrameKind.BYE, 0), b"the peer left"]
                try:
                    send(self.socket, bye)
                except zmq.ZMQError:
                    pass  # The peer is gone already.
            self.socket.close(linger=linger)
        self.socket = None
        self._numbering = None
        self._opened = self._last = self._unread = False
        self._given_up = ""
        self._inbox.clear()

    def _turn(self, now: float) -> None:
        if reason := self._given_up or self._silence(now):
            self.end(reason)
        self._looked = now
        self._dial(now)
        self._take_in(now)
        self._beat(now)

    def _attend(self, now: float) -> bool:
        if self._numbering is None or self._given_up:
            return False
        self._now = now
        self._given_up = self._silence(now)
        self._looked = now
        if not self._given_up:
            self._take_in(now)
            self._beat(now)
        return self.more

    def _silence(self, now: float) -> str:
        """Why the engine core is to be given up; empty: it isn't. After its goodbye nothing is
        expected of it, and what it said before still counts."""
        if self._numbering is None or self._last or not self._silent(self._numbering, now):
            return ""
        return f"the engine core was silent for {self._settings.peer_timeout:g} s"

    def _dial(self, now: float) -> None:
        if self.socket is None:
            if now < self._redial_at:
                return
            try:
                socket = self._context.socket(zmq.DEALER)
            except zmq.ZMQError as error:
                # No file descriptor is left.
                self.last_reason = f"the engine core can't be dialled: {error.strerror}"
                self._redial_at = now + LAST_RETRY
                return
            set_common_options(socket, self._settings)
            socket.setsockopt(zmq.IMMEDIATE, 1)
            if self._endpoint.startswith("tcp://["):
                socket.setsockopt(zmq.IPV6, 1)
            socket.setsockopt(zmq.RECONNECT_IVL, 50)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
            # A routing id may not begin with a zero byte.
            socket.setsockopt(zmq.ROUTING_ID, b"\x01" + os.urandom(15))
            if self._curve is not None:
                self._curve.secure(socket)
            socket.connect(self._endpoint)
            self.socket = socket
        if self._numbering is None:
            numbering = Numbering(now, boot=NO_BOOT, expected_boot=None)
            payload = self._encoder.encode(self._hello())
            header = numbering.seal(FrameKind.DATA, now)
            try:
                send(self.socket, [header, payload])
            except zmq.Again:
                return  # Not connected yet.
            self._numbering = numbering

    def _take_in(self, now: float) -> None:
        if self.socket is not None and not self._last:
            self._read(self.socket, now)

    def _received(self, socket: zmq.Socket[bytes]) -> list[bytes]:
        """A large message is a memoryview: vectors of all tokens of a text have tens of megabytes,
        and a copy of them takes as long as many steps."""
        frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
        parts = [each.buffer if len(each) >= LARGE else each.bytes for each in frames]
        return cast("list[bytes]", parts)

    def _accept(self, parts: list[bytes], now: float) -> None:
        if self._last:
            return
        try:
            if len(parts) != 1:
                raise BadFrame(f"a message of {len(parts)} parts that are not joined")
            parts = split(parts[0])
            boot, kind, number = unpack_header(parts[0])
            if kind is FrameKind.BYE:
                reason = bytes(parts[1]).decode(errors="replace")[:200] if len(parts) > 1 else ""
                raise BadFrame(reason or "the engine core ended it")
            self._number(boot, kind, number, parts, now)
        except BadFrame as error:
            self._finish(str(error))

    def _number(
        self, boot: bytes, kind: FrameKind, number: int, parts: list[bytes], now: float
    ) -> None:
        numbering = self._numbering
        if numbering is None:
            raise BadFrame("a message before the hello")
        numbering.accept(boot, number, now)
        if numbering.expected_boot is None:
            numbering.boot = numbering.expected_boot = boot
        if kind is FrameKind.DATA:
            self._inbox.put(Taken(b"", numbering, parts[1:]))

    def _finish(self, reason: str) -> None:
        """Ends the session after what has come so far: nothing sound follows."""
        if not self._last:
            self._last = True
            self._inbox.put(Taken(b"", self._numbering, [], ended=reason))

    def _event(self, message: Taken) -> Event[Incoming] | None:
        if self._given_up:
            return None
        if message.ended is not None:
            self.end(message.ended)
            return None
        try:
            decoded = self._decode(message.parts)
        except BadFrame as error:
            self.end(str(error))
            return None
        if self._opened:
            return Received(b"", decoded, message.parts[1:])
        self._opened = True
        self._retry = FIRST_RETRY
        return Opened(b"", decoded, message.parts[1:])

    def _beat(self, now: float) -> None:
        numbering = self._numbering
        if numbering is None or numbering.expected_boot is None or self._last:
            return  # Nothing has been received yet, or the peer is gone.
        share = ALONG if numbering.last_heard >= now else 1.0
        if now - numbering.last_sent >= share * self._settings.beat_interval:
            self._put([numbering.seal(FrameKind.BEAT, now)])

    def _put(self, parts: Sequence[bytes | memoryview]) -> bool:
        if self.socket is None:
            return False
        try:
            send(self.socket, parts)
        except zmq.Again:
            # It may have left with a goodbye, which says more.
            self._take_in(self._now)
            self._finish("the pipe to the engine core is full or down")
            return False
        return True


def _some_of(pause: float) -> float:
    return pause * random.uniform(EARLIEST, 1.0)
