"""The thread that keeps a process's sessions alive while their owner has no turn.

A beat says that this process lives, not that it works: the engine core's Status and the worker's
Progress say that, and are checked for themselves.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from penstock.process import logs

log = logs.get(__name__)

STOPS_WITHIN = 5.0
"""Seconds that an ending thread is waited for; a look takes milliseconds."""


class Alive(Protocol):
    """A SessionServer or a SessionClient."""

    @property
    def beat_interval(self) -> float: ...

    def keep_alive(self, now: float) -> bool: ...


class Heartbeat:
    """Sends the beats of servers and clients, in one thread that runs while there are any.

    A transport may be closed without taking it out first: closed ones are skipped.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """A forked child has neither the thread nor a use for the parent's sockets."""
        self._lock = threading.Lock()
        self._kept: dict[Alive, Callable[[], None]] = {}
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def join(self, alive: Alive, wake: Callable[[], None] = lambda: None) -> None:
        """Looks after it from now on. wake: called by the thread when the owner should have a turn
        soon; it must be quick."""
        with self._lock:
            self._kept[alive] = wake
            if self._thread is None:
                self._over = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._over,), name="heartbeat", daemon=True
                )
                self._thread.start()

    def leave(self, alive: Alive) -> None:
        """Looks after it no more; the thread ends with the last. Idempotent."""
        with self._lock:
            self._kept.pop(alive, None)
            ending = None if self._kept else self._end()
        self._wait_for(ending)

    def stop(self) -> None:
        """Ends the thread, even if transports are left: at the interpreter's end."""
        with self._lock:
            self._kept.clear()
            ending = self._end()
        self._wait_for(ending)

    def _end(self) -> threading.Thread | None:
        thread, self._thread = self._thread, None
        if self._over is not None:
            self._over.set()
        return thread

    def _wait_for(self, thread: threading.Thread | None) -> None:
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOPS_WITHIN)

    def _run(self, over: threading.Event) -> None:
        while not over.wait(self._pace()):
            with self._lock:
                kept = list(self._kept.items())
            for alive, wake in kept:
                try:
                    if alive.keep_alive(time.monotonic()):
                        wake()
                except Exception:
                    log.error("a session is not kept alive any more", exception=True)
                    with self._lock:
                        self._kept.pop(alive, None)

    def _pace(self) -> float:
        with self._lock:
            return min((alive.beat_interval for alive in self._kept), default=1.0) / 2


PROCESS = Heartbeat()
"""The heartbeat of this process."""

atexit.register(PROCESS.stop)
os.register_at_fork(after_in_child=PROCESS._forget)


@contextmanager
def kept_alive(*ends: Alive) -> Iterator[None]:
    """Has this process's heartbeat look after them."""
    for each in ends:
        PROCESS.join(each)
    try:
        yield
    finally:
        for each in ends:
            PROCESS.leave(each)
