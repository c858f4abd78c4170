"""What a SessionServer or a SessionClient tells its owner, in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Message = TypeVar("Message")


@dataclass(frozen=True, slots=True)
class Opened(Generic[Message]):
    """A session began. message: the peer's first (Hello at the server; its answer at a client)."""

    session: bytes
    message: Message
    frames: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Received(Generic[Message]):
    """A message of an open session. frames: binary payloads that came with it."""

    session: bytes
    message: Message
    frames: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """The session is over, in both directions; no event of it will follow."""

    session: bytes
    reason: str


Event = Opened[Message] | Received[Message] | Ended
