"""Work in the order in which it was queued, done when somebody needs what comes of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


class Meeting(ABC):
    """Work that may have to wait for another stream."""

    @abstractmethod
    def meet(self) -> bool:
        """Do it, having what it needs done first. False: nobody has queued that yet; it is asked
        again."""

    @abstractmethod
    def again(self) -> Meeting:
        """The meeting in another replay of its graph."""


Work = Callable[[], object] | Meeting


class Stream:
    """end: how much was ever queued.  done: of that."""

    def __init__(self) -> None:
        self.end = self.done = 0
        self._works: deque[Work] = deque()
        self._running = False

    def put(self, work: Work) -> None:
        self._works.append(work)
        self.end += 1

    def run(self, place: int) -> bool:
        """Up to there. False: it stands still before."""
        return self.run_until(lambda: self.done >= place)

    def run_until(self, reached: Callable[[], bool]) -> bool:
        """Runs as little as may be. False: it stands still before that."""
        if self._running:  # Whoever asks is needed by what it does.
            return reached()
        self._running = True
        try:
            while not reached():
                if not self._works or not self._step():
                    return False
            return True
        finally:
            self._running = False

    def _step(self) -> bool:
        work = self._works[0]
        if isinstance(work, Meeting):
            if not work.meet():
                return False
        else:
            work()
        self._works.popleft()
        self.done += 1
        return True


@dataclass
class WaitFor(Meeting):
    """A place in another stream, which an event marks."""

    stream: Stream
    place: int

    def meet(self) -> bool:
        return self.stream.run(self.place)

    def again(self) -> WaitFor:
        raise RuntimeError("an event is part of a graph")
