"""The thread that talks to the engine core while the main thread computes.

It owns the SessionClient: it answers beats, reports progress of a long step, and dials again when a
session has ended.  The two threads share an inbox, an outbox and one object that says what is going
on. Sessions are numbered here: what the main thread sends belongs to the session whose message it
answers, and is dropped if that is over.

What the main thread says leaves at once, by that thread itself, unless the other one is at the
socket. Handed to the other thread it would leave only when Python's lock is free, which is when the
next step computes: then sending it, and what the engine core does with it, would take a processor
from that step instead of one that has nothing to do yet.
"""

from __future__ import annotations

import os
import queue
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.process import logs
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_worker import FromWorker, Leaving, Progress, WorkerHello
from penstock.protocol.to_worker import ToWorker
from penstock.transport.events import Ended, Event, Opened
from penstock.transport.session_client import SessionClient
from penstock.transport.wire import LEAVING
from penstock_worker.left_over import HUNG_SECONDS, Activity, LeftOverStep, end_hung

log = logs.get(__name__)

PROGRESS_INTERVAL = 1.0
"""Seconds between reports from inside a step."""

TURN = 0.05
"""Seconds that a turn gives to what the engine core says, at most and one message more."""

FLUSH_SECONDS = 1.0
"""Seconds that a last message gets to leave at the end."""


@dataclass(frozen=True)
class Heard:
    """A message of the engine core."""

    session: int  # Number of the session that it belongs to.
    message: ToWorker | None  # None: the session is over.
    first: bool = False  # Whether it opened the session.
    frames: Sequence[bytes] = ()  # Binary payloads that came with the message.


class CoreSession:
    """inbox: Heard, for the main thread.  activity: what it does.

    turned: when its thread turned last, by time.monotonic.
    aside: called by this thread with each message first; whether that has taken it, so that it
    doesn't wait for a step.  over: called by this thread when a session has ended.
    rendezvous: of each WorkerHello; all of them tell the same life.  Raises StartupError for an
    endpoint that may not be dialled.
    """

    def __init__(
        self,
        endpoint: str,
        rank: int,
        settings: TransportSettings,
        rendezvous: Callable[[], str] = lambda: "",
    ) -> None:
        self.inbox: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.activity = Activity()
        self.aside: Callable[[Heard], bool] = lambda heard: False
        self.over: Callable[[], None] = lambda: None
        self.turned = time.monotonic()
        life = secrets.token_hex(8)
        self._context = zmq.Context()
        self._client: SessionClient[ToWorker] = SessionClient(
            self._context,
            endpoint,
            msgspec.msgpack.Decoder(ToWorker),
            lambda: WorkerHello(list(PROTOCOL_VERSIONS), rank, os.getpid(), rendezvous(), life),
            settings,
        )
        self._outbox: queue.SimpleQueue[tuple[int, FromWorker]] = queue.SimpleQueue()
        self._session = 0
        self._left_over = LeftOverStep(self.activity)
        self._next_progress = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        # Not zmq.Poller: it touches the socket while it waits, and `send` may do so meanwhile.
        self._poller = select.poll()
        self._poller.register(self._wake_read, select.POLLIN)
        self._watched: zmq.Socket[bytes] | None = None
        self._watched_descriptor: int | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine-session", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stands(self, session: int) -> bool:
        """Whether it is the present one. From any thread."""
        return session == self._session

    def send(self, session: int, message: FromWorker) -> None:
        """Send a message of that session, after those that are queued. From any thread."""
        self._outbox.put((session, message))
        if not self._sent_at_once():
            self._wake()

    def _sent_at_once(self) -> bool:
        """Whether all that is queued has left, and this thread's work has nothing to look at.

        ZeroMQ's descriptor signals arrivals once. If a thread that sends consumes the signal, it
        wakes the thread that waits on the descriptor.
        """
        if not self._client.lock.acquire(blocking=False):
            return False
        try:
            self._flush(self._client)
            return not self._client.due()
        finally:
            self._client.lock.release()

    def leave(self) -> None:
        """Says that this process was asked to stop, if there is a session. To be closed next."""
        self.send(self._session, Leaving())

    def close(self) -> None:
        """Send what is queued, say goodbye, end the thread."""
        self._stopping = True
        self._wake()
        self._thread.join(FLUSH_SECONDS + 1)

    def _wake(self) -> None:
        # Full, it wakes as well; and the thread that reads it may be the one that writes.
        with suppress(BlockingIOError):
            self._wake_write.send(b"\0")

    def _run(self) -> None:
        try:
            with self._context:
                try:
                    self._loop(self._client)
                finally:
                    self._client.close()
        except BaseException:
            # Without this thread the process is deaf: better that it dies and is started again.
            log.error("the session thread failed", exception=True)
            os._exit(1)

    def _loop(self, client: SessionClient[ToWorker]) -> None:
        while True:
            stopping = self._stopping
            now = self.turned = time.monotonic()
            for event in client.take(now, now + TURN):
                self._hear(event)
            self._report_progress(client, now)
            self._end_if_hung(now)
            self._flush(client)
            if stopping:
                return
            self._wait(client, now)

    def _hear(self, event: Event[ToWorker]) -> None:
        if isinstance(event, Ended):
            tell = log.info if event.reason == LEAVING else log.warning
            tell("session with the engine ended", reason=event.reason)
            self.inbox.put(Heard(self._session, None))
            self._left_over.session_ended(self.turned)
            self._session += 1
            self.over()
            return
        opened = isinstance(event, Opened)
        heard = Heard(self._session, event.message, opened, event.frames)
        if not self.aside(heard):
            self.inbox.put(heard)

    def _flush(self, client: SessionClient[ToWorker]) -> None:
        # The lock keeps messages in their order, and a session from being opened meanwhile.
        with client.lock:
            for _ in range(self._outbox.qsize()):  # What is put meanwhile wakes the next turn.
                session, message = self._outbox.get_nowait()
                if session == self._session:
                    client.send(message)

    def _report_progress(self, client: SessionClient[ToWorker], now: float) -> None:
        activity = self.activity
        step = activity.step
        if step is None or activity.session != self._session:
            self._next_progress = now + PROGRESS_INTERVAL
        elif now >= self._next_progress:
            client.send(Progress(step, activity.layers_done()))
            self._next_progress = now + PROGRESS_INTERVAL

    def _end_if_hung(self, now: float) -> None:
        """The main thread may be in a step of a session that is over, and never come back."""
        if self._left_over.stands_for(now) > HUNG_SECONDS:
            end_hung(self.activity.step)

    def _wait(self, client: SessionClient[ToWorker], now: float) -> None:
        with client.lock:
            self._watch(client.socket)
            seconds = 0.0 if client.due() else client.wait_hint(now)
        ready = dict(self._poller.poll(max(0, round(1000 * seconds))))
        if self._wake_read.fileno() in ready:
            self._wake_read.recv(4096)

    def _watch(self, socket: zmq.Socket[bytes] | None) -> None:
        """Has the poller look at the present session's socket, and at no earlier one's."""
        if socket is self._watched:
            return
        if self._watched_descriptor is not None:
            self._poller.unregister(self._watched_descriptor)
        self._watched = socket
        self._watched_descriptor = None if socket is None else int(socket.getsockopt(zmq.FD))
        if self._watched_descriptor is not None:
            self._poller.register(self._watched_descriptor, select.POLLIN)
