"""What is known of one model that comes and goes."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.from_supervisor import Presence

Mark = tuple[str, Presence, int]
"""A model, its presence, and how often it has failed."""

LOADED: frozenset[Presence] = frozenset(("starting", "ready", "closing", "stopping"))
"""States in which a model takes memory."""


@dataclass
class Resident:
    """One model. Times in seconds, on the caller's clock."""

    model: str
    pinned: bool
    presence: Presence = "absent"
    gib: float | None = None
    """GiB of memory that it counts for; None: not known before it is prepared."""
    reason: str = ""
    failures: int = 0
    retry_at: float = 0.0
    begun_at: float = 0.0
    ready_at: float = 0.0
    used_at: float = 0.0
    wanted_since: float | None = None
    wanting: set[int] = field(default_factory=set)
    holding: set[int] = field(default_factory=set)
    busy: set[int] = field(default_factory=set)

    @property
    def evictable(self) -> bool:
        return not self.pinned and self.presence in ("starting", "ready")
