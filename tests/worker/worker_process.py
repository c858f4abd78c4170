"""A worker's process, and an engine core's side of its session."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.protocol.from_worker import Fault, FromWorker, Ready, WorkerHello
from penstock.protocol.to_worker import Setup
from penstock.transport.events import Ended, Opened
from penstock.transport.session_server import SessionServer
from testing.preloaded import Preloaded, in_use

SETTINGS = TransportSettings(beat_interval=0.2, peer_timeout=60.0)
"""No test waits for a silence, and a busy machine's pauses shall not pass for one."""
START = """
import sys
from penstock.process import logs
from penstock.config.settings import TransportSettings
from penstock_worker import engine_session
from penstock_worker.process import main
from penstock_worker.worker import FINAL
logs.setup("worker 0")
engine_session.FLUSH_SECONDS = 60.0
try:
    transport = TransportSettings(beat_interval=0.2, peer_timeout=60.0)
    main(sys.argv[1], 0, transport, model_dir=sys.argv[2] or None)
except FINAL as error:
    print(error, file=sys.stderr)
    sys.exit(78)
"""


class Engine:
    """The engine's end of the worker's session, and the worker's process."""

    def __init__(
        self, source: Preloaded, folder: Path, model_dir: str = "", start: str = START
    ) -> None:
        self.endpoint = f"ipc://{folder}/worker"
        self._context = zmq.Context()
        self._events: deque[Any] = deque()
        self.bind(b"12345678")
        self._said = folder / "stderr"
        command = [sys.executable, "-c", start, self.endpoint, model_dir]
        with in_use(source), self._said.open("wb") as stderr:
            self.worker = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
            )

    def bind(self, boot: bytes) -> None:
        decoder = msgspec.msgpack.Decoder(FromWorker)
        self.server: SessionServer[FromWorker] = SessionServer(
            self._context, self.endpoint, decoder, SETTINGS, boot
        )
        self.session = b""
        self._events.clear()

    def wait(self, wanted: Callable[[Any], bool], seconds: float = 120) -> Any:
        """The first event for which wanted(event) holds; keeps the session alive meanwhile."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            while self._events:
                event = self._events.popleft()
                if isinstance(event, Opened):
                    self.session = event.session
                if wanted(event):
                    return event
            self.server.socket.poll(20)
            self._events.extend(self.server.poll(time.monotonic()))
            if not self._events and self._has_left(wanted):
                raise AssertionError(f"the worker left: {self.errors}")
        raise AssertionError("nothing came")

    def _has_left(self, wanted: Callable[[Any], bool]) -> bool:
        return self.worker.poll() is not None and not isinstance(wanted, Ending)

    def left(self) -> list[Any]:
        """All that has come and that nobody has waited for."""
        return [*self._events, *self.server.poll(time.monotonic())]

    def hear(self, kind: type) -> Any:
        """The next message of that type; a Fault is a failure unless it is what we wait for."""

        def fits(event: Any) -> bool:
            message = getattr(event, "message", None)
            if isinstance(message, Fault) and kind is not Fault:
                raise AssertionError(message)
            return isinstance(message, kind)

        return self.wait(fits).message

    def send(self, message: Any, *frames: bytes) -> None:
        self.server.send(self.session, message, frames)

    def set_up(self, setup: Setup) -> Ready:
        assert self.hear(WorkerHello).rank == 0
        self.send(setup)
        return self.hear(Ready)

    def exit_code(self) -> tuple[int, str]:
        return self.worker.wait(100), self.errors

    @property
    def errors(self) -> str:
        """What the worker has written to standard error."""
        return self._said.read_text()

    def close(self) -> None:
        self.worker.kill()
        self.worker.wait(100)
        self.server.close()
        self._context.destroy(linger=0)


class Ending:
    """Waits for the session's end, however the worker fares."""

    def __call__(self, event: Any) -> bool:
        return isinstance(event, Ended)
