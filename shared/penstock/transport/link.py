"""The dialling end (front ends and workers): one session at a time, a new one after each end."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from penstock.config import TransportSettings
from penstock.transport.curve import client_curve
from penstock.transport.events import Ended, Event, Opened, Received
from penstock.transport.lane import Lane
from penstock.transport.wire import (
    MAX_FRAMES,
    NO_BOOT,
    BadFrame,
    Kind,
    pack_header,
    set_common_options,
    unpack_header,
)

Incoming = TypeVar("Incoming")

DRAIN_LIMIT = 1000
FIRST_RETRY = 0.05
LAST_RETRY = 1.0
DIALLING_PACE = 0.02
"""Seconds between looks at a connection that is not up yet."""


class Link(Generic[Incoming]):
    """A session with the engine core, renewed whenever it ends.

    Each session dials with a new DEALER under a fresh random identity, so that frames of an ended
    one can't be mistaken for its successor's.  `hello()` makes the first message of each.  The
    owner calls `poll` when `socket` is readable and at the latest after `wait_hint` seconds.

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
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._hello = hello
        self._settings = settings
        self._now = 0.0
        self._redial_at = 0.0
        self._retry = FIRST_RETRY
        self._lane: Lane | None = None
        self._opened = False
        self._more = False
        self._ended: list[Ended] = []
        self._late: list[Event[Incoming]] = []
        self.last_reason = ""
        self.socket: zmq.Socket[bytes] | None = None

    @property
    def opened(self) -> bool:
        """Whether a session is open: the engine has answered."""
        return self._opened

    @property
    def boot(self) -> bytes | None:
        """The engine's boot in the open session."""
        return self._lane.expected_boot if self._lane is not None and self._opened else None

    def wait_hint(self, now: float) -> float:
        """Seconds that the owner may wait on `socket` before the next poll."""
        if self._more or self._ended or self._late:
            return 0.0
        if self.socket is None:
            return max(0.0, self._redial_at - now)
        if not self._opened:
            return DIALLING_PACE
        return self._settings.beat_interval / 2

    def poll(self, now: float) -> list[Event[Incoming]]:
        """Dials where needed and returns what happened, at most DRAIN_LIMIT messages.

        Silence is looked at before anything is read: after a freeze of this process the engine
        has ended the session, and what waits in the socket must not be acted on.
        """
        self._now = now
        if self._lane is not None and self._lane.silent(now, self._settings.peer_timeout):
            self.end(f"the engine core was silent for {self._settings.peer_timeout:g} s")
        events, self._late = self._late, []
        self._flush_ended(events)
        self._dial(now)
        self._drain(now, events)
        self._beat(now)
        self._flush_ended(events)
        return events

    def send(self, message: Any, frames: Sequence[bytes] = ()) -> bool:
        """Queues a message; False when there is no open session (nothing was sent)."""
        if not self._opened or self._lane is None:
            return False
        payload = self._encoder.encode(message)
        return self._put([self._lane.seal(Kind.DATA, self._now), payload, *frames])

    def end(self, reason: str) -> None:
        """Ends the session; the next poll reports it, and a later one dials again."""
        was_open = self._opened
        self.last_reason = reason
        self._hang_up()
        self._redial_at = self._now + self._retry
        self._retry = min(self._retry * 2, LAST_RETRY)
        if was_open:
            self._ended.append(Ended(b"", reason))

    def close(self) -> None:
        """Says goodbye and closes the socket for good."""
        self._hang_up(linger=100)
        self._redial_at = float("inf")

    def _hang_up(self, linger: int = 0) -> None:
        if self.socket is not None:
            if self._opened:
                bye = [pack_header(NO_BOOT, Kind.BYE, 0), b"the peer left"]
                try:
                    self.socket.send_multipart(bye, zmq.NOBLOCK)
                except zmq.ZMQError:
                    pass  # It is gone already: there is nobody to tell.
            self.socket.close(linger=linger)
        self.socket = None
        self._lane = None
        self._opened = False
        self._more = False

    def _dial(self, now: float) -> None:
        if self.socket is None:
            if now < self._redial_at:
                return
            socket = self._context.socket(zmq.DEALER)
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
        if self._lane is None:
            lane = Lane(now, boot=NO_BOOT, expected_boot=None)
            payload = self._encoder.encode(self._hello())
            header = lane.seal(Kind.DATA, now)
            try:
                self.socket.send_multipart([header, payload], zmq.NOBLOCK)
            except zmq.Again:
                return  # Not connected yet.
            self._lane = lane

    def _drain(self, now: float, events: list[Event[Incoming]]) -> None:
        self._more = False
        for _ in range(DRAIN_LIMIT):
            if self.socket is None:
                return
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                self._take(parts, now, events)
            except BadFrame as error:
                self.end(str(error))
        self._more = True

    def _take(self, parts: list[bytes], now: float, events: list[Event[Incoming]]) -> None:
        if not 1 <= len(parts) <= MAX_FRAMES:
            raise BadFrame(f"a message of {len(parts)} parts")
        boot, kind, number = unpack_header(parts[0])
        if kind is Kind.BYE:
            reason = parts[1].decode(errors="replace")[:200] if len(parts) > 1 else ""
            self.end(reason or "the engine core ended it")
            return
        if self._lane is None:
            raise BadFrame("a message before the hello")
        self._lane.accept(boot, number, now)
        if kind is Kind.DATA:
            events.append(self._receive(boot, parts))

    def _receive(self, boot: bytes, parts: list[bytes]) -> Event[Incoming]:
        if len(parts) < 2:
            raise BadFrame("a message without a payload")
        try:
            message = self._decoder.decode(parts[1])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"a payload that doesn't decode: {error}") from None
        if self._opened or self._lane is None:
            return Received(b"", message, parts[2:])
        self._opened = True
        self._retry = FIRST_RETRY
        self._lane.boot = boot
        self._lane.expected_boot = boot
        return Opened(b"", message, parts[2:])

    def _beat(self, now: float) -> None:
        lane = self._lane
        if lane is None or not self._opened:
            return
        if now - lane.last_sent >= self._settings.beat_interval:
            self._put([lane.seal(Kind.BEAT, now)])

    def _put(self, parts: list[bytes]) -> bool:
        if self.socket is None:
            return False
        try:
            self.socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            # It may have left with a goodbye, which says more.
            self._drain(self._now, self._late)
            if self._opened:
                self.end("the pipe to the engine core is full or down")
            return False
        return True

    def _flush_ended(self, events: list[Event[Incoming]]) -> None:
        events.extend(self._ended)
        self._ended.clear()
