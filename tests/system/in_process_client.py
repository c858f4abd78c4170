"""An EngineClient whose engine core and worker are in the same process: no sockets, no waiting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.client import EngineClient
from penstock.client.session import EngineSession
from penstock.protocol.from_frontend import FromFrontend
from penstock.protocol.to_frontend import Welcome
from penstock.transport.events import Opened, Received
from testing.in_process import FRONT, System, recode


class _Link:
    """What a SessionClient is to its client, over a System."""

    last_reason = ""
    socket = None
    more = False
    opened = True
    beat_interval = 1.0

    def __init__(self, system: System) -> None:
        self._system = system
        self._due = 0.0
        """When it is looked at again, though no socket tells."""

    def send(self, message: Any, frames: Sequence[bytes | memoryview] = ()) -> bool:
        self._system.core.frontend_received(FRONT, recode(message, FromFrontend), 0.0)
        return True

    def take(self, now: float, until: float) -> list[Any]:
        self._due = now + 0.01
        return [
            Opened(FRONT, message, list(frames))
            if isinstance(message, Welcome)
            else Received(FRONT, message, list(frames))
            for message, frames in self._system.step()
        ]

    def keep_alive(self, now: float) -> bool:
        return False

    def wait_hint(self, now: float) -> float:
        return 0.0 if self._system.core.state.scheduling.has_work else max(0.0, self._due - now)

    def end(self, reason: str) -> None:
        raise AssertionError(reason)

    def close(self) -> None:
        pass


class InProcessClient(EngineClient):
    def __init__(self, system: System) -> None:
        super().__init__("ipc://nowhere", name="test")
        make = self._fleet._make

        def without_sockets(index: int, endpoint: str) -> EngineSession:
            session = make(index, endpoint)
            session.transport.close()
            session.transport = _Link(system)  # type: ignore[assignment]
            return session

        self._fleet._make = without_sockets
