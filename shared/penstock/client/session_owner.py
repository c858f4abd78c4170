"""What a session with an engine core tells whoever holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.client.generation import Generation
from penstock.client.placement import OpenRequest
from penstock.protocol.common import NamedAdapter
from penstock.protocol.live import Snapshot
from penstock.protocol.to_frontend import Rejected, Status, Welcome

if TYPE_CHECKING:
    from penstock.client.session import EngineSession


class SessionOwner(Protocol):
    """due: those with a sink that this turn has given something."""

    due: list[Generation]

    def session_opened(
        self, session: EngineSession, welcome: Welcome, frames: list[bytes]
    ) -> None: ...

    def session_lost(self, session: EngineSession, reason: str, now: float) -> None: ...

    def status_changed(self, session: EngineSession, before: Status | None) -> None: ...

    def shown(self, session: EngineSession, snapshot: Snapshot, now: float) -> None: ...

    def adapters_named(self, session: EngineSession, told: list[NamedAdapter]) -> None: ...

    def fingerprint_changed(
        self, session: EngineSession, request: OpenRequest, before: str
    ) -> None: ...

    def rejected(
        self, session: EngineSession, request: OpenRequest | None, message: Rejected
    ) -> None: ...
