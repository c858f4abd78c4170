"""The engine core's process: sockets and a clock around EngineCore, nothing else."""

from __future__ import annotations

import gc
import os
import secrets
import signal
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
import zmq

from penstock.config.settings import EngineConfig
from penstock.errors import StartupError
from penstock.net.listener import raise_file_limit
from penstock.prepare.folder import check_contents, load_manifest
from penstock.process import logs
from penstock.process.memory import collect_seldom
from penstock.process.start_phases import START
from penstock.protocol.from_frontend import FromFrontend, MediaChunk
from penstock.protocol.from_worker import FromWorker
from penstock.request.generation_config import generation_defaults
from penstock.text.given_template import read_template
from penstock.transport.curve import Peers, gatekeeper
from penstock.transport.events import Ended, Opened
from penstock.transport.heartbeat import kept_alive
from penstock.transport.session_server import SessionServer
from penstock_engine.core import EngineCore
from penstock_engine.facts import EngineFacts
from penstock_engine.live.view import LiveView
from penstock_engine.notes import SleepNote, WeightsNote, adapters_of
from penstock_engine.record.recorder import recording
from penstock_engine.sessions.effects import Effects
from penstock_engine.sessions.weights_hashing import WeightsHashing

log = logs.get(__name__)

TURN = 0.02
"""Seconds that a turn of the loop gives to what workers say, and as many to front ends, at most and
one message more: while they have much to say, steps are that much apart."""


def main(
    config: EngineConfig,
    model_dir: str,
    frontend_endpoint: str,
    worker_endpoint: str,
    *,
    shutdown_timeout: float = 5.0,
    adapters_file: str | None = None,
    sleep_file: str | None = None,
    weights_file: str | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, and then until open requests have ended, for
    shutdown_timeout seconds at most; a second signal ends it at once.

    model_dir: a prepared folder.  Endpoints are `ipc://PATH` or `tcp://INTERFACE:PORT`.
    adapters_file: where those of the settings are noted for the next start.  sleep_file: where it
    is noted that the model sleeps.  weights_file: and which weights it was given since the start.

    Raises StartupError where a folder can't be read or an endpoint can't be bound.
    """
    raise_file_limit()
    boot = secrets.token_bytes(8)
    noted = None if adapters_file is None else Path(adapters_file)
    created = int(time.time())
    note = SleepNote(sleep_file)
    facts = read_facts(config, Path(model_dir), boot=boot.hex(), created=created, noted=noted)
    facts = msgspec.structs.replace(facts, asleep=note.level)
    weights = WeightsNote(weights_file)
    facts = weights.apply(facts)
    with (
        recording(EngineCore(facts), config.record) as recorded,
        _observing(recorded, config) as core,
        _wakeup() as wakeup,
        zmq.Context() as context,
        gatekeeper(context, config.transport),
        _bound(frontend_endpoint),
        _bound(worker_endpoint),
        closing(
            _session_server(context, frontend_endpoint, "frontends", config, boot)
        ) as frontends,
        closing(_session_server(context, worker_endpoint, "workers", config, boot)) as workers,
    ):
        START.passed("model's facts")
        START.done()
        log.info(
            "engine listening",
            frontends=frontend_endpoint,
            workers=worker_endpoint,
            boot=boot.hex(),
            model=core.state.facts.model.name,
        )
        gc.collect()
        collect_seldom()
        with kept_alive(frontends, workers):
            Loop(core, frontends, workers, wakeup, shutdown_timeout, note, weights).run()
    log.info("engine stopped")


class Loop:
    """Hands events to the core, for a bounded time, sends what it returns, and waits for more."""

    def __init__(
        self,
        core: EngineCore,
        frontends: SessionServer[FromFrontend],
        workers: SessionServer[FromWorker],
        wakeup: socket.socket,
        shutdown_timeout: float,
        note: SleepNote,
        weights: WeightsNote,
    ) -> None:
        self._core = core
        self._note = note
        self._weights = weights
        self._live = LiveView(core, time.monotonic())
        self._hashing = WeightsHashing(core)
        self._frontends = frontends
        self._workers = workers
        self._wakeup = wakeup
        self._shutdown_timeout = shutdown_timeout
        self._due = 0.0
        """The time at which the core has to be stepped, even if no message comes."""
        self._leave_at: float | None = None
        self._signalled = False
        """Whether a signal has come since the last look."""
        # Hubs want to be polled every beat interval; more often, silence is noticed sooner.
        self._longest_wait = core.state.facts.config.transport.beat_interval / 4
        self._poller = zmq.Poller()
        for waited in (frontends.socket, workers.socket, wakeup.fileno()):
            self._poller.register(waited, zmq.POLLIN)

    def run(self) -> None:
        """Runs until a signal has asked to stop and what was open is done, or was given its
        time."""
        while True:
            now = time.monotonic()
            signals = self._take_signals(now)
            if signals > 1:
                return
            if self._take_events(now) or signals or now >= self._due:
                self._step(now)
            if self._leave_at is not None and (now >= self._leave_at or self._core.may_leave(now)):
                return
            self._show(now)
            self._wait()

    def _step(self, now: float) -> None:
        effects = self._core.step(now)
        if not self._core.was_quiet:
            self._keep_notes()
        self._live.delivering(effects, now)
        self._deliver(effects)

    def _wait(self) -> None:
        """Waits until something comes or is due; not at all while something is left from this
        turn."""
        self._due = min(self._core.next_deadline(), self._live.next_due())
        wait = min(self._longest_wait, self._due - time.monotonic())
        # Polling touches the sockets, so the heartbeat keeps away; nothing of theirs is due.
        with self._frontends.lock, self._workers.lock:
            if self._frontends.more or self._workers.more:
                wait = 0.0
            ready = dict(self._poller.poll(max(0, round(1000 * wait))))
        self._signalled = self._wakeup.fileno() in ready

    def _keep_notes(self) -> None:
        state = self._core.state
        self._note.keep(state.sleep.noted)
        if state.weights.answered:
            self._weights.keep(state.facts.folder)

    def _take_events(self, now: float) -> bool:
        """Whether there were any. Beats are none: with many front ends they wake the loop hundreds
        of times a second, and have nothing to say to the core."""
        core, live = self._core, self._live
        happened = False
        # The worker first: the device should not wait for a flood of requests.
        for event in self._workers.take(now, time.monotonic() + TURN):
            happened = True
            if isinstance(event, Ended):
                core.worker_ended(event.session, event.reason, now)
            elif isinstance(event, Opened):
                core.worker_opened(event.session, event.message, now)
            else:
                core.worker_received(event.session, event.message, now)
                live.worker_said(event.message, now)
        for front in self._frontends.take(now, time.monotonic() + TURN):
            happened = True
            if isinstance(front, Ended):
                core.frontend_ended(front.session, front.reason, now)
                live.frontend_ended(front.session)
            elif isinstance(front, Opened):
                core.frontend_opened(front.session, front.message, now)
                live.frontend_opened(front.session, now)
            elif isinstance(front.message, MediaChunk):
                self._take_chunk(front.session, front.message, front.frames, now)
            elif not (
                live.takes(front.session, front.message, now)
                or self._hashing.takes(front.session, front.message)
            ):
                core.frontend_received(front.session, front.message, now)
        return happened

    def _take_chunk(
        self, session: bytes, message: MediaChunk, frames: list[bytes], now: float
    ) -> None:
        if len(frames) != 1 or len(frames[0]) != message.size:
            self._frontends.end(session, "a MediaChunk must have one frame of the announced size")
            return
        self._core.frontend_sent_chunk(session, message, frames[0], now)

    def _show(self, now: float) -> None:
        """Shows the core's state to those who watch, and answers HashWeights; after a step is on
        its way."""
        if self._hashing.asked:
            for session, answer in self._hashing.answers():
                self._frontends.send(session, answer)
        shown = self._live.snapshots(now)
        if shown is not None:
            for session in shown[0]:
                self._frontends.send(session, shown[1])

    def _deliver(self, effects: Effects) -> None:
        for session, to_worker, chunks in effects.to_workers:
            self._workers.send(session, to_worker, [chunk.data for chunk in chunks])
        for session, to_frontend, frames in effects.to_frontends:
            self._frontends.send(session, to_frontend, frames)
        for session, reason in effects.end_workers:
            self._workers.end(session, reason)
        for session, reason in effects.end_frontends:
            self._frontends.end(session, reason)

    def _take_signals(self, now: float) -> int:
        """How many have come so far, if one came now (else 0). The first begins the drain."""
        if not self._signalled:
            return 0
        count = len(self._wakeup.recv(64))
        if self._leave_at is not None:
            return count + 1
        log.info("draining", seconds=self._shutdown_timeout)
        self._leave_at = now + self._shutdown_timeout
        self._core.drain(now)
        return count


def _observing(core: EngineCore, config: EngineConfig) -> AbstractContextManager[EngineCore]:
    """The core for the loop: `core` itself where there is no metrics port."""
    port = config.metrics.engine_metrics_port
    if port is None:
        return nullcontext(core)
    from penstock_engine.metrics.port import metrics_port

    return metrics_port(core, config.metrics, port)


def _session_server(
    context: zmq.Context[Any], endpoint: str, peers: Peers, config: EngineConfig, boot: bytes
) -> SessionServer[Any]:
    decoder: Any = msgspec.msgpack.Decoder(FromFrontend if peers == "frontends" else FromWorker)
    try:
        return SessionServer(context, endpoint, decoder, config.transport, boot, peers)
    except zmq.ZMQError as error:
        raise StartupError(f"can't listen at {endpoint}: {error}") from error


@contextmanager
def _wakeup() -> Iterator[socket.socket]:
    """A socket that becomes readable when SIGTERM or SIGINT arrives."""
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    handlers = {
        signum: signal.signal(signum, lambda *_: None) for signum in (signal.SIGTERM, signal.SIGINT)
    }
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        reader.close()
        writer.close()


@contextmanager
def _bound(endpoint: str) -> Iterator[None]:
    """Removes the socket file that a killed engine left, and at the end our own."""
    if not endpoint.startswith("ipc://"):
        yield
        return
    path = Path(endpoint.removeprefix("ipc://"))
    _remove_stale(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"{path} exists and isn't a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise StartupError(f"another engine core is already listening at {path}")


def read_facts(
    config: EngineConfig, folder: Path, *, boot: str, created: int, noted: Path | None = None
) -> EngineFacts:
    """Everything that the core needs of `folder`. noted: a file that says what the adapters of the
    settings were at the first start; from then on their own files may change or go.

    Raises ModelNotFound, UnsupportedModel (see load_manifest) or StartupError, which is also for an
    adapter of the settings that can't be served.
    """
    model = load_manifest(folder)
    try:
        tokenizer = (folder / "tokenizer.json").read_bytes()
        template = (folder / "chat_template.jinja").read_bytes() if model.has_chat_template else b""
    except OSError as error:
        raise StartupError(f"{folder} is not a complete prepared folder: {error}") from error
    check_contents(model, tokenizer, template)
    generation = generation_defaults(model.generation, config.model)
    given = config.model.chat_template
    return EngineFacts(
        config=config,
        model=msgspec.structs.replace(model, generation=generation),
        folder=str(folder.resolve()),
        tokenizer=tokenizer,
        template=template if given is None else read_template(given).encode(),
        boot=boot,
        created=created,
        adapters=adapters_of(config, (model.name, *config.model.served_names), noted),
    )
