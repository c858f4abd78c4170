"""The engine core's end: one bound ROUTER and a session for each peer that dialled in."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from penstock.config import TransportSettings
from penstock.transport.curve import Peers, server_curve
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
"""Messages taken in one poll, so that a flood can't keep the owner from its step."""

SESSION_ID_BYTES = 16

LEAVING = "the engine core is leaving"
FAREWELL = 1.0
FAREWELL_PACE = 0.005


class Hub(Generic[Incoming]):
    """Sessions over one ROUTER.  Never blocks; the owner polls `socket` and calls `poll`.

    A gap in the numbers, a frame that doesn't decode, a full pipe, a vanished peer or
    `peer_timeout` seconds of silence end a session: its owner gets `Ended` once, the peer a BYE
    where it can still be reached.  A frame of an unknown or ended session is answered by BYE and
    never acted on, so a process that was frozen learns what happened meanwhile.

    boot: 8 bytes that name this life of the engine.  peers: who dials here, which says whose keys
    are allowed where the transport is secured.  Raises zmq.ZMQError where the endpoint can't be
    bound, and StartupError as `curve.server_curve` does.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        decoder: msgspec.msgpack.Decoder[Incoming],
        settings: TransportSettings,
        boot: bytes,
        peers: Peers = "frontends",
    ) -> None:
        curve = server_curve(endpoint, settings, peers)
        if len(boot) != len(NO_BOOT) or boot == NO_BOOT:
            raise ValueError(f"boot must be {len(NO_BOOT)} bytes, not all zero")
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._settings = settings
        self._boot = boot
        self._lanes: dict[bytes, Lane] = {}
        self._ended: list[Ended] = []
        self._now = 0.0
        self.socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        set_common_options(self.socket, settings)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if curve is not None:
            curve.secure(self.socket)
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError:
            self.socket.close()
            raise

    @property
    def sessions(self) -> list[bytes]:
        """Open sessions, oldest first."""
        return list(self._lanes)

    def poll(self, now: float) -> list[Event[Incoming]]:
        """What happened: at most DRAIN_LIMIT messages, and every session that ended.

        Silent peers are ended before anything is read: after a freeze of this process, frames
        that waited belong to sessions that the other side has given up.
        """
        self._now = now
        self._expire(now)
        events: list[Event[Incoming]] = []
        self._flush_ended(events)
        for _ in range(DRAIN_LIMIT):
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._take(parts, now, events)
            self._flush_ended(events)
        self._beat(now)
        self._flush_ended(events)
        return events

    def send(self, session: bytes, message: Any, frames: Sequence[bytes] = ()) -> None:
        """Queues a message. A session that isn't open is ignored: its end has been reported."""
        lane = self._lanes.get(session)
        if lane is None:
            return
        payload = self._encoder.encode(message)
        self._put(session, lane, [lane.seal(Kind.DATA, self._now), payload, *frames])

    def end(self, session: bytes, reason: str) -> None:
        """Ends a session, tells the peer, and lets the next poll report it."""
        if self._lanes.pop(session, None) is None:
            return
        self._say_bye(session, reason)
        self._ended.append(Ended(session, reason))

    def close(self) -> None:
        """Says goodbye to every peer, gives them FAREWELL seconds to hang up, closes the socket.

        What a peer has not read when the connection goes is lost to it, be it the end of a request
        or our goodbye; but a peer that has read our goodbye has read all that came before it.
        """
        there = self.sessions
        self._lanes.clear()
        over = time.monotonic() + FAREWELL
        while there := [s for s in there if self._say_bye(s, LEAVING)]:
            if time.monotonic() >= over:
                break
            time.sleep(FAREWELL_PACE)
            self._turn_away(there)
        self.socket.close(linger=0)

    def _turn_away(self, known: list[bytes]) -> None:
        """Answers those who dial in meanwhile: a hello without an answer would cost them a whole
        timeout."""
        for _ in range(DRAIN_LIMIT):
            try:
                session = self.socket.recv_multipart(zmq.NOBLOCK)[0]
            except zmq.Again:
                return
            if session not in known:
                self._say_bye(session, LEAVING)

    def _expire(self, now: float) -> None:
        timeout = self._settings.peer_timeout
        for session in [s for s, lane in self._lanes.items() if lane.silent(now, timeout)]:
            self.end(session, f"silent for more than {timeout:g} s")

    def _beat(self, now: float) -> None:
        for session, lane in list(self._lanes.items()):
            if now - lane.last_sent >= self._settings.beat_interval:
                self._put(session, lane, [lane.seal(Kind.BEAT, now)])

    def _put(self, session: bytes, lane: Lane, parts: list[bytes]) -> None:
        try:
            self.socket.send_multipart([session, *parts], zmq.NOBLOCK)
        except zmq.Again:
            self.end(session, "its pipe is full")
        except zmq.ZMQError as error:
            self.end(session, f"it can't be reached: {error}")

    def _say_bye(self, session: bytes, reason: str) -> bool:
        """Returns whether the peer is still connected."""
        header = pack_header(self._boot, Kind.BYE, 0)
        try:
            self.socket.send_multipart([session, header, reason.encode()], zmq.NOBLOCK)
        except zmq.Again:
            return True  # Its pipe is full.
        except zmq.ZMQError:
            return False  # There is nobody to tell.
        return True

    def _flush_ended(self, events: list[Event[Incoming]]) -> None:
        events.extend(self._ended)
        self._ended.clear()

    def _take(self, parts: list[bytes], now: float, events: list[Event[Incoming]]) -> None:
        session = parts[0]
        try:
            if not 2 <= len(parts) <= MAX_FRAMES:
                raise BadFrame(f"a message of {len(parts)} parts")
            boot, kind, number = unpack_header(parts[1])
            if kind is Kind.BYE:
                self._peer_left(session, parts[2:])
            elif session in self._lanes:
                self._of_open_session(session, boot, kind, number, parts[2:], now, events)
            elif kind is Kind.DATA and number == 0 and boot == NO_BOOT:
                self._of_new_session(session, number, parts[2:], now, events)
            else:
                self._say_bye(session, "no such session")
        except BadFrame as error:
            self._break(session, str(error))

    def _break(self, session: bytes, reason: str) -> None:
        if session in self._lanes:
            self.end(session, reason)
        else:
            self._say_bye(session, reason)

    def _peer_left(self, session: bytes, rest: list[bytes]) -> None:
        if self._lanes.pop(session, None) is not None:
            reason = rest[0].decode(errors="replace")[:200] if rest else "the peer left"
            self._ended.append(Ended(session, reason))

    def _of_open_session(
        self,
        session: bytes,
        boot: bytes,
        kind: Kind,
        number: int,
        rest: list[bytes],
        now: float,
        events: list[Event[Incoming]],
    ) -> None:
        self._lanes[session].accept(boot, number, now)
        if kind is Kind.DATA:
            events.append(Received(session, self._decode(rest), rest[1:]))

    def _of_new_session(
        self,
        session: bytes,
        number: int,
        rest: list[bytes],
        now: float,
        events: list[Event[Incoming]],
    ) -> None:
        if len(session) != SESSION_ID_BYTES:
            raise BadFrame(f"a session id must have {SESSION_ID_BYTES} bytes")
        message = self._decode(rest)
        lane = Lane(now, boot=self._boot, expected_boot=self._boot)
        lane.accept(NO_BOOT, number, now)
        self._lanes[session] = lane
        events.append(Opened(session, message, rest[1:]))

    def _decode(self, rest: list[bytes]) -> Incoming:
        if not rest:
            raise BadFrame("a message without a payload")
        try:
            return self._decoder.decode(rest[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"a payload that doesn't decode: {error}") from None
