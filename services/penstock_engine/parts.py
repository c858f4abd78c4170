"""What a part of the engine core may take part in: a part derives from each of these that it does.

None has attributes, so that a part with slots has no others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class HasDeadline(ABC):
    """It has something to do at a certain time, even if no message comes."""

    __slots__ = ()

    @abstractmethod
    def next_deadline(self) -> float:
        """The next such time, in seconds of the core's clock; infinity for none."""


class Restless(ABC):
    """It may have something to do that no message and no deadline announces, such as when the last
    step in flight is settled."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_restless(self) -> bool:
        """Whether that may be so at the next turn, even if it brings nothing but tokens."""


class HoldsSequences(ABC):
    """Sequences wait in it, outside the queue."""

    __slots__ = ()

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """Number of these sequences."""


class ReportsStatus(ABC):
    """A part whose status goes to front ends."""

    __slots__ = ()

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Fields of Status by name, none of which another part reports."""


class ServesFrontends(ABC):
    """A part that serves front ends' messages other than requests."""

    __slots__ = ()

    @abstractmethod
    def frontend_ended(self, session: bytes) -> None:
        """Called when a front end is gone."""
