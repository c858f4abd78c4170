"""Who has sessions with engine cores, as these ask and tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from penstock.client.generation import Generation
from penstock.client.placement import OpenRequest
from penstock.client.session_turns import ConsumerTurns
from penstock.protocol.common import NamedAdapter
from penstock.protocol.live import Snapshot
from penstock.protocol.to_frontend import Rejected, Status, Welcome

if TYPE_CHECKING:
    from penstock.client.session import EngineSession


class Owner(Protocol):
    """What a session tells. turns: of those who read its requests.  text: what names the tokenizer
    and the template that are there, see Hello."""

    turns: ConsumerTurns[Generation]

    @property
    def text(self) -> tuple[str, str, str] | None: ...

    async def may_dial(self, session: EngineSession) -> None: ...

    async def session_opened(
        self, session: EngineSession, welcome: Welcome, frames: list[bytes]
    ) -> None: ...

    def session_lost(self, session: EngineSession, reason: str, now: float) -> None: ...

    def status_changed(self, session: EngineSession, before: Status | None) -> None: ...

    def shown(self, session: EngineSession, snapshot: Snapshot, now: float) -> None: ...

    def adapters_named(self, session: EngineSession, told: list[NamedAdapter]) -> None: ...

    def misplaced(self, session: EngineSession, request: OpenRequest) -> None: ...

    def rejected(
        self, session: EngineSession, request: OpenRequest | None, message: Rejected
    ) -> None: ...
