"""What gives a session with an engine core its turns, and the consumers of its requests theirs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import zmq

ENDS_AT_ONCE = 8
"""Ended requests whose consumers go on in one iteration of the event loop. Each takes some 0.2 ms;
with all of a step of 256 at once, every other stream stood still for 50 ms."""


READING = 0.02
"""Seconds of an iteration of the event loop in which messages are read, at most and one message
more of each session."""


class LoopTurns:
    """Has the event loop call `turn` when the session's socket has something, when the heartbeat
    says so, and soon where the session asks for it: each of the latter once for each turn.

    lock: of the socket.
    """

    def __init__(self, lock: threading.RLock, turn: Callable[[], None]) -> None:
        self._lock = lock
        self._turn = turn
        self._watched: int | None = None
        self._soon_due = False
        self._wake_due = False

    def begin(self) -> None:
        """A turn begins: from here on another one may be due."""
        self._soon_due = self._wake_due = False

    def soon(self) -> None:
        """Asks for another turn in the loop's next iteration."""
        if not self._soon_due:
            self._soon_due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def waker(self) -> Callable[[], None]:
        """Returns what the heartbeat calls, in its own thread: what it has taken, the file
        descriptor does not tell of any more."""
        loop = asyncio.get_running_loop()

        def wake() -> None:
            if not self._wake_due:
                self._wake_due = True
                with contextlib.suppress(RuntimeError):  # The loop is closed.
                    loop.call_soon_threadsafe(self._turn)

        return wake

    def watch(self, socket: zmq.Socket[bytes] | None) -> None:
        """Has the loop wake the session for this socket's file descriptor only; None: for none."""
        descriptor = None
        if socket is not None:
            with self._lock:
                descriptor = int(socket.getsockopt(zmq.FD))
        if descriptor == self._watched:
            return
        loop = asyncio.get_running_loop()
        if self._watched is not None:
            loop.remove_reader(self._watched)
        if descriptor is not None:
            loop.add_reader(descriptor, self._turn)
        self._watched = descriptor


class TextSink(Protocol):
    """Collects text, and writes it to the connection on `put`."""

    def take(self, text: str, tokens: int, now: float) -> bool:
        """Takes what so many tokens add, "" where they add no text yet; False where it can't now,
        and then it has taken nothing.  now: by time.perf_counter, in seconds."""

    def put(self) -> None:
        """Writes what was taken, before anything else happens to the request. Doesn't raise."""


Due = TypeVar("Due")


class ConsumerTurns(Generic[Due]):
    """The consumers that go on with what this turn has brought.

    due: requests whose sinks have deltas to write.  written: what has taken plain text, which is to
    go out before those.  merging: more messages wait, so that a request's tokens of all of them go
    out together.
    """

    def __init__(self) -> None:
        self._left: float | None = None
        """Seconds that reading may still take in this iteration; None: nothing was read in it."""
        self.due: list[Due] = []
        self.written: list[TextSink] = []
        self.merging = False
        self._ended: deque[asyncio.Event] = deque()

    def until(self, now: float) -> float:
        """When reading is over that begins now, by time.monotonic: all sessions together, and one
        that is looked at several times, have READING in an iteration of the event loop."""
        if self._left is None:
            self._left = READING
            asyncio.get_running_loop().call_soon(self._iterated)
        return now + self._left

    def has_read(self, seconds: float) -> None:
        """So long has it taken."""
        if self._left is not None:
            self._left = max(0.0, self._left - seconds)

    def _iterated(self) -> None:
        self._left = None

    def over(self, wake: asyncio.Event, *, at_once: bool) -> None:
        """Sets the event that wakes a consumer when its request is over.

        at_once: the consumer waits for deltas.  Else they go to its sink, and the rest of its work
        gives way to other requests' tokens: ENDS_AT_ONCE in an iteration of the event loop.
        """
        if at_once:
            wake.set()
            return
        self._ended.append(wake)
        if len(self._ended) == 1:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(ENDS_AT_ONCE, len(self._ended))):
            self._ended.popleft().set()
        if self._ended:
            asyncio.get_running_loop().call_soon(self._wake_some)
