"""What the core wants done: it has no sockets of its own."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.to_frontend import ToFrontend
from penstock.protocol.to_worker import Plan, ToWorker

Frames = tuple[bytes, ...]


class ChunkBytes:
    """A part of somebody's picture, on its way to the workers. Nothing here looks at it, and no
    recording holds it: of a core that was rebuilt from one it is not there."""

    __slots__ = ("data",)
    UNRECORDED = __slots__

    def __init__(self, data: bytes) -> None:
        self.data = data


@dataclass(slots=True)
class Effects:
    """Messages to send, in order, as (session, message, frames); then sessions to end, each with
    the reason that its peer gets.  Workers come first: a step should be under way while its
    predecessor's outputs are being sent."""

    to_workers: list[tuple[bytes, ToWorker, tuple[ChunkBytes, ...]]] = field(default_factory=list)
    to_frontends: list[tuple[bytes, ToFrontend, Frames]] = field(default_factory=list)
    end_workers: list[tuple[bytes, str]] = field(default_factory=list)
    end_frontends: list[tuple[bytes, str]] = field(default_factory=list)

    def take(self) -> Effects:
        """Returns everything in a new object, and empties this one."""
        taken = Effects(self.to_workers, self.to_frontends, self.end_workers, self.end_frontends)
        self.to_workers, self.to_frontends = [], []
        self.end_workers, self.end_frontends = [], []
        return taken

    def plans(self) -> list[Plan]:
        """Each plan once: the ranks of a group are sent the same one, one after another."""
        found: list[Plan] = []
        for _, message, _ in self.to_workers:
            if isinstance(message, Plan) and not (found and found[-1] is message):
                found.append(message)
        return found
