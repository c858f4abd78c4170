"""Sliding windows of a minute, and those that a process counts by itself.

What counts as used is what came in the running minute, and of what came in the one before the part
that is less than a minute ago, were it spread evenly.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple, Protocol

MINUTE = 60
NO_LIMIT = 2**52
"""Stands for no limit where something is counted come what may; Lua counts in doubles."""


class Window(NamedTuple):
    """What a key has used in the running minute and in the one before."""

    before: int
    """What was used in the minute before the running one."""
    before_left: float
    """Seconds of the minute before that still count."""
    now: int
    """What has been used in the running minute."""
    left: float
    """Seconds that the running minute has left."""

    @property
    def used(self) -> int:
        return math.floor(self.before * self.before_left / MINUTE) + self.now

    def seconds_until(self, used: int) -> float:
        """Seconds until no more than `used` counts as used, if nothing is added."""
        over = self.before * self.before_left / MINUTE + self.now - used
        if over <= 0:
            return 0.0
        if self.now <= used:
            return over * MINUTE / self.before
        return self.left + MINUTE * (1 - max(used, 0) / self.now)

    def after(self, seconds: float) -> Window:
        """The window so much later, if nothing is added."""
        if seconds < self.left:
            before_left = max(0.0, self.before_left - seconds)
            return Window(self.before, before_left, self.now, self.left - seconds)
        ended = seconds - self.left
        if ended < MINUTE:
            return Window(self.now, MINUTE - ended, 0, MINUTE - ended)
        return UNUSED


UNUSED = Window(0, 0.0, 0, float(MINUTE))


class LimitCheck(NamedTuple):
    """name: of a count.  limit: what may be used in a minute.  amount: to be counted, if the limit
    allows that; 0: only look."""

    name: str
    limit: int
    amount: int


class LimitState(NamedTuple):
    """allowed: whether the amount fitted, and was counted.  window: as it is now."""

    allowed: bool
    window: Window

    @classmethod
    def of(cls, window: Window, check: LimitCheck) -> LimitState:
        """Returns the state after a check of a window, which has what was used before it."""
        allowed = not check.amount or window.used + check.amount <= check.limit
        if allowed:
            window = window._replace(now=window.now + check.amount)
        return cls(allowed, window)


class RateWindows(Protocol):
    """Where minutes are counted."""

    async def check(self, checks: Sequence[LimitCheck]) -> list[LimitState]:
        """A state for each check, in their order. Raises StorageDown."""

    def add(self, name: str, amount: int) -> None:
        """Counts so many more, come what may, and soon."""

    async def close(self) -> None:
        """Counts what is to be counted, as far as that is possible now."""


class StorageDown(Exception):
    """Raised if the storage of limits doesn't answer. Its text says why."""


class ProcessWindows:
    """Counts of this process, by a clock that nobody sets."""

    def __init__(self) -> None:
        self._minutes: dict[float, Counter[str]] = {}
        """The running one, and the one before."""

    async def check(self, checks: Sequence[LimitCheck]) -> list[LimitState]:
        """Returns a state for each check, in their order. Raises nothing."""
        return [self._taken(check) for check in checks]

    def add(self, name: str, amount: int) -> None:
        """Counts so many more, come what may."""
        self._taken(LimitCheck(name, NO_LIMIT, amount))

    async def close(self) -> None:
        """Nothing is kept."""

    def _taken(self, check: LimitCheck) -> LimitState:
        state = LimitState.of(self._window(check.name), check)
        if state.allowed:
            self._minutes[max(self._minutes)][check.name] += check.amount
        return state

    def _window(self, name: str) -> Window:
        number, passed = divmod(time.monotonic(), MINUTE)
        kept = {each: self._minutes.get(each, Counter()) for each in (number - 1, number)}
        self._minutes = kept
        left = MINUTE - passed
        return Window(kept[number - 1][name], left, kept[number][name], left)


MOST_NAMES = 65_536
"""Counts that are remembered; the one that was asked for longest ago is forgotten."""


class LastWindows:
    """Each count as the storage had it last, from which this process counts on while the storage is
    away. A count that this process hasn't seen begins at none."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[Window, float]] = {}

    def saw(self, name: str, window: Window) -> None:
        """The storage has answered with this window just now."""
        self._seen.pop(name, None)
        if len(self._seen) >= MOST_NAMES:
            del self._seen[next(iter(self._seen))]
        self._seen[name] = window, time.monotonic()

    def take(self, check: LimitCheck) -> LimitState:
        """Counts in this process alone."""
        window, since = self._seen.get(check.name, (UNUSED, 0.0))
        state = LimitState.of(window.after(time.monotonic() - since), check)
        self.saw(check.name, state.window)
        return state

    def add(self, name: str, amount: int) -> None:
        """Counts so many more in this process, come what may."""
        self.take(LimitCheck(name, NO_LIMIT, amount))
