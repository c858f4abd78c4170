"""Both ends of a session, as a test turns their loops."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import zmq

from penstock.config.settings import TransportSettings
from penstock.transport.events import Ended, Event, Opened
from penstock.transport.session_client import SessionClient
from penstock.transport.session_server import SessionServer

BOOT = b"boot-one"
PATIENT = TransportSettings(beat_interval=0.1, peer_timeout=60.0)
"""Quick, and no pause of a busy machine passes for a silence."""
FREEZING = TransportSettings(beat_interval=0.1, peer_timeout=1.5)
"""Where another process is silent in earnest."""


class Clock:
    """Time as servers and clients of a test are told it. ahead: seconds that no test has to wait
    for."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


class Wire:
    """A server and what its owner saw; answers every Hello."""

    def __init__(
        self,
        context: zmq.Context,
        endpoint: str,
        boot: bytes = BOOT,
        settings: TransportSettings = PATIENT,
        clock: Clock | None = None,
    ) -> None:
        self.server = SessionServer(
            context, endpoint, msgspec.msgpack.Decoder(list), settings, boot
        )
        self.clock = clock or Clock()
        self.events: list[Event] = []

    def poll(self) -> None:
        for event in self.server.poll(self.clock()):
            self.events.append(event)
            if isinstance(event, Opened):
                self.server.send(event.session, ["welcome"])

    def of(self, kind: type) -> list:
        return [event for event in self.events if isinstance(event, kind)]


def make_link(
    context: zmq.Context, endpoint: str, settings: TransportSettings = PATIENT
) -> SessionClient:
    return SessionClient(
        context, endpoint, msgspec.msgpack.Decoder(list), lambda: ["hello"], settings
    )


def pump(
    wire: Wire | None, client: SessionClient | None, until, seconds: float = 30.0
) -> list[Event]:
    """Turns both loops until `until(events of the client)`; returns those events. The wire's clock
    is the client's too."""
    clock = wire.clock if wire is not None else Clock()
    seen: list[Event] = []
    deadline = time.monotonic() + seconds
    while not until(seen):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s; the client saw {seen}")
        if wire is not None:
            wire.poll()
        if client is not None:
            seen.extend(client.poll(clock()))
        time.sleep(0.002)
    return seen


def opened(events: list[Event]) -> bool:
    return any(isinstance(event, Opened) for event in events)


def ended(events: list[Event]) -> bool:
    return any(isinstance(event, Ended) for event in events)


def start_peer(
    endpoint: str, mode: str = "echo", settings: TransportSettings = PATIENT
) -> subprocess.Popen:
    script = Path(__file__).with_name("peer_process.py")
    clocks = [str(settings.beat_interval), str(settings.peer_timeout)]
    return subprocess.Popen(
        [sys.executable, str(script), endpoint, *clocks, mode],
        stdout=subprocess.PIPE,
        text=True,
    )
