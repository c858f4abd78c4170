"""The interface of a session's owner, which sessions with engine cores call."""

from __future__ import annotations

from typing import Protocol, TypeVar

from penstock.client.generation import Generation
from penstock.client.placement import OpenRequest
from penstock.client.session_turns import ConsumerTurns
from penstock.protocol.common import NamedAdapter
from penstock.protocol.live import Snapshot
from penstock.protocol.to_frontend import Rejected, Status, Welcome

Session = TypeVar("Session", contravariant=True)


class Owner(Protocol[Session]):
    """The callbacks of a session. turns: of the readers of its requests.  text: names the tokenizer
    and the template here, see Hello."""

    turns: ConsumerTurns[Generation]

    @property
    def text(self) -> tuple[str, str, str] | None: ...

    async def may_dial(self, session: Session) -> None: ...

    async def session_opened(
        self, session: Session, welcome: Welcome, frames: list[bytes]
    ) -> None: ...

    def session_lost(self, session: Session, reason: str, now: float) -> None: ...

    def status_changed(self, session: Session, before: Status | None) -> None: ...

    def shown(self, session: Session, snapshot: Snapshot, now: float) -> None: ...

    def adapters_named(self, session: Session, reported: list[NamedAdapter]) -> None: ...

    def misplaced(self, session: Session, request: OpenRequest) -> None: ...

    def rejected(
        self, session: Session, request: OpenRequest | None, message: Rejected
    ) -> None: ...
