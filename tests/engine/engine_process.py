"""An engine core's process, and a peer that speaks with it over its sockets."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.protocol import PROTOCOL_VERSIONS
from penstock.protocol.from_frontend import Hello
from penstock.protocol.from_worker import Ready, WorkerHello
from penstock.protocol.to_frontend import Status, ToFrontend
from penstock.protocol.to_worker import Plan, Setup, ToWorker
from penstock.transport.events import Ended, Opened
from penstock.transport.session_client import SessionClient
from tests.engine import small_facts
from tests.engine.fake_media import FakeMedia
from tests.engine.fake_worker import FakeWorker

SETTINGS = TransportSettings(beat_interval=0.1, peer_timeout=60.0)
"""No test waits for a silence, and a busy machine's pauses shall not pass for one."""
VERSIONS = list(PROTOCOL_VERSIONS)
PROGRAM = """
import sys, msgspec
from penstock.process import logs
from penstock.config.settings import EngineConfig
from penstock_engine.process import main
logs.setup("engine")
main(
    msgspec.json.decode(sys.argv[1], type=EngineConfig),
    *sys.argv[2:5],
    shutdown_timeout=float(sys.argv[5]),
)
"""

BUSY = TransportSettings(beat_interval=0.1, peer_timeout=5.0)
"""The peers' where a test waits for longer than a silence may last."""
PATIENT = TransportSettings(beat_interval=0.1, peer_timeout=60.0)
"""The engine core's own there: how long this process may be kept off the processor."""
BUSY_PROGRAM = (
    """
import sys, time
from pathlib import Path
from penstock_engine.core import EngineCore
step, busy = EngineCore.step, Path(sys.argv[2]) / "busy"
def step_when_idle(self, now):
    while busy.exists():
        sum(range(100_000))
    return step(self, now)
EngineCore.step = step_when_idle
"""
    + PROGRAM
)
"""Its main thread computes, and does nothing else, for as long as there is a file `busy`."""


def write_prepared(folder: Path) -> Path:
    """A prepared folder of the tests' tiny model."""
    (folder / "manifest.json").write_bytes(msgspec.json.encode(small_facts.facts().model))
    (folder / "tokenizer.json").write_bytes(b'{"tokens": "real"}')
    (folder / "chat_template.jinja").write_bytes(b"")
    return folder


def with_keys(settings: TransportSettings, keys: Path | None, role: str) -> TransportSettings:
    """The arguments with that role's folder of keys, if there are any."""
    folder = None if keys is None else str(keys / role)
    return msgspec.structs.replace(settings, curve_dir=folder)


class Peer:
    """A SessionClient and what came over it."""

    def __init__(
        self,
        context: zmq.Context[Any],
        endpoint: str,
        union: Any,
        hello: Any,
        settings: TransportSettings = SETTINGS,
    ) -> None:
        decoder = msgspec.msgpack.Decoder(union)
        self.client: SessionClient[Any] = SessionClient(
            context, endpoint, decoder, lambda: hello, settings
        )
        self.messages: list[Any] = []
        self.frames: list[list[bytes]] = []
        """Frames of first messages, and of later ones that had any."""
        self.ended: list[str] = []

    def poll(self, now: float | None = None) -> None:
        """now: by whatever clock it has always been; without one, time.monotonic."""
        for event in self.client.poll(time.monotonic() if now is None else now):
            if isinstance(event, Ended):
                self.ended.append(event.reason)
            else:
                self.messages.append(event.message)
                if isinstance(event, Opened) or event.frames:
                    self.frames.append(event.frames)

    def take(self, kind: Any) -> Any:
        """The oldest message of a kind, or None."""
        for at, message in enumerate(self.messages):
            if isinstance(message, kind):
                return self.messages.pop(at)
        return None


class Engine:
    """A running engine process with one front end and one worker. keys: a folder with those of
    `engine`, `gateway` and `worker`, for endpoints over TCP."""

    def __init__(
        self,
        folder: Path,
        settings: TransportSettings = SETTINGS,
        program: str = PROGRAM,
        peers: TransportSettings = SETTINGS,
        endpoints: Sequence[str] = (),
        keys: Path | None = None,
    ) -> None:
        self.folder = folder
        self.settings, self.program = with_keys(settings, keys, "engine"), program
        self.clock: Callable[[], float] = time.monotonic
        """The peers'."""
        self.endpoints = [*endpoints] or [f"ipc://{folder}/frontends", f"ipc://{folder}/workers"]
        self.context: zmq.Context[Any] = zmq.Context()
        fronts, workers = self.endpoints
        hellos = Hello(VERSIONS, "test", 1), WorkerHello(VERSIONS, 0, 1)
        own = [with_keys(peers, keys, role) for role in ("gateway", "worker")]
        self.front = Peer(self.context, fronts, ToFrontend, hellos[0], own[0])
        self.work = Peer(self.context, workers, ToWorker, hellos[1], own[1])
        self.process: subprocess.Popen[str] | None = None
        self.worker: FakeWorker | None = None
        self.shutdown_timeout = 60.0
        self.held = False
        """While it is, the worker keeps plans to itself."""

    def start(self) -> subprocess.Popen[str]:
        config = msgspec.structs.replace(small_facts.facts().config, transport=self.settings)
        arguments = [msgspec.json.encode(config).decode(), str(self.folder), *self.endpoints]
        arguments.append(str(self.shutdown_timeout))
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.program, *arguments], stderr=subprocess.PIPE, text=True
        )
        return self.process

    def until(self, done: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Lets both peers work until `done` gives something."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            now = self.clock()
            self.front.poll(now)
            self.work.poll(now)
            self._serve()
            found = done()
            if found:
                return found
            time.sleep(0.002)
        raise TimeoutError("it didn't happen in time")

    def _serve(self) -> None:
        setup = self.work.take(Setup)
        if setup is not None:
            self.worker = FakeWorker(setup, 20, media=FakeMedia(16))
            self.work.client.send(
                Ready(
                    num_kv_blocks=20,
                    device="test",
                    fingerprint="f",
                    load_seconds=0.0,
                    media_rows=16,
                )
            )
        plan = None if self.held else self.work.take(Plan)
        if plan is not None and self.worker is not None:
            self.work.client.send(self.worker.execute(plan))

    def ready(self) -> bool:
        status = self.front.take(Status)
        return status is not None and status.ready

    def draining(self) -> bool:
        status = self.front.take(Status)
        return status is not None and status.draining

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
        self.front.client.close()
        self.work.client.close()
        self.context.term()
