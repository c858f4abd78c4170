"""The engine core's end: one bound ROUTER and a session for each peer that dialled in."""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.process import logs
from penstock.transport.curve import Peers, server_curve
from penstock.transport.events import Ended, Event, Opened, Received
from penstock.transport.inbound import DRAIN_LIMIT, Inbound, Taken
from penstock.transport.wire import (
    LEAVING,
    MAX_FRAMES,
    NO_BOOT,
    BadFrame,
    FrameKind,
    Numbering,
    join,
    pack_header,
    send,
    set_common_options,
    unpack_header,
)

Incoming = TypeVar("Incoming")

log = logs.get(__name__)

SESSION_ID_BYTES = 16

ROOM_SECONDS = 1.0
"""Seconds between looks whether this process could take one more connection."""

FEW_LEFT = 16
"""File descriptors: so few are worth a warning."""

FAREWELL = 1.0
FAREWELL_PACE = 0.005


class SessionServer(Inbound[Incoming]):
    """Sessions over one ROUTER.  Never blocks; the owner waits on `socket` and calls `take`.

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
        super().__init__(decoder, settings)
        self._boot = boot
        self._numberings: dict[bytes, Numbering] = {}
        self._encoded: tuple[Any, bytes] = (None, b"")
        """The last message, and its payload."""
        self._closed = False
        self._silent_from = self._beats_from = math.inf
        """Moments before which no session can be silent, and none is due a beat."""
        self._look_for_room_at = 0.0
        self._no_room = logs.Seldom(log.error)
        self._little_room = logs.Seldom(log.warning)
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
        """Open sessions that the owner knows of, oldest first."""
        with self.lock:
            return [session for session, numbering in self._numberings.items() if numbering.told]

    def send(self, session: bytes, message: Any, frames: Sequence[bytes] = ()) -> None:
        """Queues a message. A session that isn't open is ignored: its end has been reported, or
        will be.

        The same object for one session after the other is encoded once: it must not change.
        """
        if session not in self._numberings:
            return
        if message is not self._encoded[0]:
            self._encoded = message, self._encoder.encode(message)
        payload = self._encoded[1]
        with self.lock:
            numbering = self._numberings.get(session)
            if numbering is not None:
                header = numbering.seal(FrameKind.DATA, self._now)
                self._put(session, numbering, header, [payload, *frames])

    def end(self, session: bytes, reason: str) -> None:
        """Ends a session, tells the peer, and lets the next turn report it. Nothing else of it is
        passed on."""
        with self.lock:
            numbering = self._numberings.get(session)
            if numbering is not None:
                self._end(session, numbering, reason)

    def close(self) -> None:
        """Says goodbye to every peer, gives them FAREWELL seconds to hang up, closes the socket.

        What a peer has not read when the connection goes is lost to it, be it the end of a request
        or our goodbye; but a peer that has read our goodbye has read all that came before it.
        """
        with self.lock:
            self._closed = True  # From here on the socket is left to us.
        there = list(self._numberings)
        self._numberings.clear()
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

    def _turn(self, now: float) -> None:
        self._expire(now)
        self._looked = now
        self._beat(now)
        if now >= self._look_for_room_at:
            self._look_for_room_at = now + ROOM_SECONDS
            self._look_for_room()
        self._read(self.socket, now)

    def _look_for_room(self) -> None:
        """ZeroMQ doesn't report that it can't accept a connection. Over a Unix socket, libzmq
        (4.3.5) even aborts the process, so the log says beforehand what is missing."""
        try:
            lowest_free = os.dup(self.socket.fileno())
            os.close(lowest_free)
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            if limit != resource.RLIM_INFINITY and lowest_free >= limit - FEW_LEFT:
                self._little_room(
                    "few file descriptors are left of those that the limit (ulimit -n) allows:"
                    " connections hold them, and without any this process may end",
                    limit=limit,
                    left=limit - lowest_free,
                )
        except OSError as error:
            self._no_room(
                "nobody can connect: connections hold all file descriptors that the limit"
                " (ulimit -n) allows; sessions that are open go on",
                why=error.strerror,
            )

    def _attend(self, now: float) -> bool:
        if self._closed:
            return False
        self._now = now
        self._turn(now)
        return self.more

    def _expire(self, now: float) -> None:
        """Looks at all sessions only where one may have been silent for too long: with many of
        them, each of whose beats is a turn, looking costs more than all else."""
        if now < self._silent_from:
            return
        silent = [
            (s, numbering)
            for s, numbering in self._numberings.items()
            if self._silent(numbering, now)
        ]
        for session, numbering in silent:
            timeout = self._settings.peer_timeout
            self._end(session, numbering, f"silent for more than {timeout:g} s")
        heard = (numbering.last_heard for numbering in self._numberings.values())
        self._silent_from = min(heard, default=math.inf) + self._settings.peer_timeout

    def _beat(self, now: float) -> None:
        if now < self._beats_from:
            return
        for session, numbering in list(self._numberings.items()):
            if now - numbering.last_sent >= self._settings.beat_interval:
                self._put(session, numbering, numbering.seal(FrameKind.BEAT, now), [])
        sent = (numbering.last_sent for numbering in self._numberings.values())
        self._beats_from = min(sent, default=math.inf) + self._settings.beat_interval

    def _put(self, session: bytes, numbering: Numbering, header: bytes, parts: list[bytes]) -> None:
        try:
            send(self.socket, [session, join(header, parts)])
        except zmq.Again:
            self._end(session, numbering, "its pipe is full")
        except zmq.ZMQError as error:
            self._end(session, numbering, f"it can't be reached: {error}")

    def _end(self, session: bytes, numbering: Numbering, reason: str) -> None:
        """Ends a session at once: what was taken of it is not acted on."""
        if self._numberings.get(session) is numbering:
            del self._numberings[session]
            self._say_bye(session, reason)
        numbering.over = True
        if numbering.told:
            self._ended.append(Ended(session, reason))

    def _say_bye(self, session: bytes, reason: str) -> bool:
        """Returns whether the peer is still connected."""
        header = pack_header(self._boot, FrameKind.BYE, 0)
        try:
            send(self.socket, [session, join(header, [reason.encode()])])
        except zmq.Again:
            return True  # Its pipe is full.
        except zmq.ZMQError:
            return False  # The peer is gone.
        return True

    def _accept(self, parts: list[bytes], now: float) -> None:
        session = parts[0]
        try:
            if not 2 <= len(parts) <= MAX_FRAMES:
                raise BadFrame(f"a message of {len(parts)} parts")
            boot, kind, number = unpack_header(parts[1])
            numbering = self._numberings.get(session)
            if kind is FrameKind.BYE:
                reason = parts[2].decode(errors="replace")[:200] if len(parts) > 2 else ""
                self._left(session, reason or "the peer left")
            elif numbering is not None:
                numbering.accept(boot, number, now)
                if kind is FrameKind.DATA:
                    self._inbox.put(Taken(session, numbering, parts[2:]))
            elif kind is FrameKind.DATA and number == 0 and boot == NO_BOOT:
                self._open(session, parts[2:], now)
            else:
                self._say_bye(session, "no such session")
        except BadFrame as error:
            self._say_bye(session, str(error))
            self._left(session, str(error))

    def _open(self, session: bytes, parts: list[bytes], now: float) -> None:
        if len(session) != SESSION_ID_BYTES:
            raise BadFrame(f"a session id must have {SESSION_ID_BYTES} bytes")
        numbering = Numbering(now, boot=self._boot, expected_boot=self._boot)
        numbering.accept(NO_BOOT, 0, now)
        self._numberings[session] = numbering
        self._silent_from = min(self._silent_from, now + self._settings.peer_timeout)
        self._beats_from = min(self._beats_from, now + self._settings.beat_interval)
        self._inbox.put(Taken(session, numbering, parts))

    def _left(self, session: bytes, reason: str) -> None:
        """Ends a session after what has come so far: nothing sound follows."""
        numbering = self._numberings.pop(session, None)
        if numbering is not None:
            self._inbox.put(Taken(session, numbering, [], ended=reason))

    def _event(self, message: Taken) -> Event[Incoming] | None:
        session, numbering = message.session, message.numbering
        if numbering is None or numbering.over:
            return None
        if message.ended is not None:
            numbering.over = True
            return Ended(session, message.ended) if numbering.told else None
        try:
            decoded = self._decode(message.parts)
        except BadFrame as error:
            self._end(session, numbering, str(error))
            return None
        if numbering.told:
            return Received(session, decoded, message.parts[1:])
        numbering.told = True
        return Opened(session, decoded, message.parts[1:])
