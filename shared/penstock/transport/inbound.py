"""What a SessionServer and a SessionClient have in common: incoming messages are read at once, and
passed on in turns."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.transport.events import Ended, Event
from penstock.transport.wire import BadFrame, Numbering, is_readable

Incoming = TypeVar("Incoming")

DRAIN_LIMIT = 1000
"""Messages taken from a socket in one go, and messages that an inbox holds."""

INBOX_BYTES = 16_777_216
"""Bytes in an inbox, at most and one message more."""

LATE = 1.0
"""Beat intervals without a turn of the owner, after which the heartbeat looks in its stead."""


@dataclass(slots=True)
class Taken:
    """A message as it came, numbered and not decoded; or, if `ended` says why, the session's end.

    numbering: None at a client before its hello has left.
    """

    session: bytes
    numbering: Numbering | None
    parts: list[bytes]
    ended: str | None = None


class Inbox:
    """What was taken from the socket and waits for the owner, oldest first.

    Who finds it full reads no more: the rest stays with ZeroMQ, which has a bound of its own.
    """

    def __init__(self) -> None:
        self._messages: deque[Taken] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def full(self) -> bool:
        return len(self._messages) >= DRAIN_LIMIT or self._bytes >= INBOX_BYTES

    def put(self, message: Taken) -> None:
        self._messages.append(message)
        for part in message.parts:
            self._bytes += len(part)

    def pop(self) -> Taken | None:
        """The oldest, or None."""
        if not self._messages:
            return None
        message = self._messages.popleft()
        for part in message.parts:
            self._bytes -= len(part)
        return message

    def clear(self) -> None:
        self._messages.clear()
        self._bytes = 0


class Inbound(ABC, Generic[Incoming]):
    """Taking from a socket is cheap, and proves that the peer lives; decoding and handling a
    message is not.  So all that has come is taken at each look, numbered, and kept in an inbox; the
    owner is given as much of it as it has time for.

    A process that works lives too: where its owner has no turn for LATE beat intervals, the
    `heartbeat` thread looks in its stead, so that beats come and go.  What was taken waits.

    lock: held by each thread that uses the socket, by the owner also while it waits on it
    (`zmq.Poller` does touch it).  The owner calls everything here but `keep_alive`, in one thread.
    """

    def __init__(
        self, decoder: msgspec.msgpack.Decoder[Incoming], settings: TransportSettings
    ) -> None:
        self.lock = threading.RLock()
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._settings = settings
        self._inbox = Inbox()
        self._ended: deque[Ended] = deque()
        self._unread = False
        self._now = 0.0
        self._looked = 0.0

    @property
    def beat_interval(self) -> float:
        """Seconds of silence before a beat is due."""
        return self._settings.beat_interval

    @property
    def more(self) -> bool:
        """Whether the next turn has something to pass on, so that the caller shouldn't wait for the
        socket."""
        return bool(self._inbox or self._ended) or self._unread

    def poll(self, now: float) -> list[Event[Incoming]]:
        """A turn without a bound in time: what happened, at most DRAIN_LIMIT messages, and every
        session that ended."""
        return list(self.take(now))

    def take(self, now: float, until: float | None = None) -> Iterator[Event[Incoming]]:
        """A turn: looks at the socket, then hands out what has come, one event after the other.

        until: by time.monotonic; from then on no further event is passed on, and the rest waits for
        the next turn (see `more`).  There is at least one a turn, if there are any.

        Silence is looked at before anything is read: after a freeze of this process the other
        side has ended the session, and what waits in the socket must not be acted on.
        """
        with self.lock:
            self._now = now
            self._turn(now)
        return self._hand_out(until)

    def keep_alive(self, now: float) -> bool:
        """Called by the heartbeat's thread: looks at the socket if the owner is late. Returns
        whether the owner should have a turn soon: something was taken, or the session is over."""
        late = now - self._looked >= LATE * self._settings.beat_interval
        # The owner holds the lock, and so isn't late.
        if not late or not self.lock.acquire(blocking=False):
            return False
        try:
            return self._attend(now)
        finally:
            self.lock.release()

    @abstractmethod
    def _turn(self, now: float) -> None:
        """The owner's look: silence, beats, reading."""

    @abstractmethod
    def _attend(self, now: float) -> bool:
        """The heartbeat's look, and what `keep_alive` returns."""

    @abstractmethod
    def _accept(self, parts: list[bytes], now: float) -> None:
        """Takes a message that was read, and puts it into the inbox."""

    @abstractmethod
    def _event(self, message: Taken) -> Event[Incoming] | None:
        """What it is to the owner; None: nothing."""

    def _hand_out(self, until: float | None) -> Iterator[Event[Incoming]]:
        yield from self._ends()
        for _ in range(len(self._inbox)):
            with self.lock:
                message = self._inbox.pop()
                event = None if message is None else self._event(message)
            if event is not None:
                yield event
            if self._ended:
                yield from self._ends()
            if until is not None and time.monotonic() >= until:
                return

    def _ends(self) -> Iterator[Ended]:
        while self._ended:
            yield self._ended.popleft()

    def _read(self, socket: zmq.Socket[bytes], now: float) -> None:
        """Takes what has come, as far as there is room.

        It ends with "nothing there" where it can: after that, the file descriptor tells of what
        comes, whichever thread has read. That is asked for: an exception costs several times as
        much, and most looks find one message or none.
        """
        self._unread = True
        for _ in range(DRAIN_LIMIT):
            if self._inbox.full:
                return
            if not is_readable(socket):
                self._unread = False
                return
            self._accept(self._received(socket), now)

    def _received(self, socket: zmq.Socket[bytes]) -> list[bytes]:
        """The parts of the next message, which is there."""
        return socket.recv_multipart(zmq.NOBLOCK)

    def _silent(self, numbering: Numbering, now: float) -> bool:
        """Whether its peer is to be given up.

        Where something is left unread that may be its beats.  But the socket goes unread for as
        long only where this process was frozen as a whole; then the peer has given us up.
        """
        timeout = self._settings.peer_timeout
        return numbering.silent(now, timeout) and not (
            self._unread and now - self._looked <= timeout
        )

    def _decode(self, parts: list[bytes]) -> Incoming:
        if not parts:
            raise BadFrame("a message without a payload")
        try:
            return self._decoder.decode(parts[0])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"a payload that doesn't decode: {error}") from None
