"""How many threads compute a step, on a machine that has other things to do.

The threads of a step wait for each other some hundred times. Where the system has put one of them
aside to run another process, all wait until it comes back, for milliseconds each time: on two busy
cores two threads may take five times as long as one. So where they wait much, fewer are tried, and
stay as long as they are faster. A row's bits don't depend on it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

WINDOW = 5
"""Steps that are looked at together; of their times, the middle one counts. They have alike numbers
of rows: one that is unlike the others begins a window of its own."""
MUCH = 0.1
"""Share of the threads' time that they may wait for each other (beyond spinning, which is short)
before fewer are tried."""
FASTER = 0.9
"""Share of the time with more threads that fewer may take to stay."""
SHORTEST, LONGEST = 32, 1024
"""Steps until the next trial: twice as many after each that was in vain."""
ROWS_OF_ONE, MOST_OF_ONE = 64, 12
"""In a pause a step counts as one for so many rows, but as so many at most that a window of them is
shorter than PATIENCE. Steps of a thousand rows take tenths of a second each, and would make a pause
of minutes."""
PATIENCE = 64
"""Steps that a trial may take where steps of alike sizes don't come; all threads are used then."""


@dataclass(slots=True)
class _Trial:
    """A trial of another number of threads. before, seconds, size: the number, time and size that
    it is compared with.  steps: that it has taken."""

    before: int
    seconds: float
    size: int
    steps: int = 0


@dataclass(slots=True)
class ThreadCount:
    """Chooses before each step how many threads compute it, and learns from its duration. steady:
    all of them, always."""

    most: int
    steady: bool = False
    now: int = field(init=False)
    _times: list[float] = field(default_factory=list)
    _waited: float = 0.0
    """Shares of the window's steps, added up."""
    _size: int = 0
    """Size of the window's steps: that of their rows, by powers of two."""
    _pause: int = SHORTEST
    _left: int = 0
    """Steps until a trial."""
    _trial: _Trial | None = None
    _trials: int = 0
    """Trials in a row that were in vain."""

    def __post_init__(self) -> None:
        self.now = self.most

    def tell(self, rows: int, seconds: float, lost: float) -> None:
        """Records the duration of a step that `now` threads computed, and its rows. lost: seconds
        that they waited for each other beyond spinning, of all of them together."""
        if self.steady or self.most == 1:
            return
        self._left -= min(1 + rows // ROWS_OF_ONE, MOST_OF_ONE)
        size = rows.bit_length()
        if size != self._size:
            self._begin_window(size)
        self._times.append(seconds)
        self._waited += lost / (self.now * seconds) if seconds > 0 else 0.0
        trial = self._trial
        if trial is not None:
            trial.steps += 1
            if len(self._times) == WINDOW and size == trial.size:
                self._judge(trial, statistics.median(self._times))
            elif trial.steps > PATIENCE:
                self._settle(self.most)
        elif self._left <= -PATIENCE and self.now < self.most:
            self._settle(self.most)  # No window was ever full: what was learned is old.
        elif len(self._times) == WINDOW and self._left <= 0:
            self._try(statistics.median(self._times), self._waited / WINDOW)
        if len(self._times) == WINDOW:
            self._begin_window(size)

    def _begin_window(self, size: int) -> None:
        self._times.clear()
        self._waited = 0.0
        self._size = size

    def _try(self, seconds: float, waited: float) -> None:
        now = self.now
        fewer = [now - max(1, now // 4), now // 2, 1] if now > 1 and waited > MUCH else []
        more = [min(now + max(1, now // 2), self.most), self.most] if now < self.most else []
        if fewer or more:
            self._trial = _Trial(now, seconds, self._size)
            self.now = [*fewer, *more][self._trials % len(fewer + more)]

    def _judge(self, trial: _Trial, seconds: float) -> None:
        if seconds < trial.seconds * (FASTER if self.now < trial.before else 1.0):
            self._pause, self._trials = SHORTEST, 0
            self._settle(self.now)
        else:
            self._pause, self._trials = min(2 * self._pause, LONGEST), self._trials + 1
            self._settle(trial.before)

    def _settle(self, threads: int) -> None:
        """Settles on this number of threads until the pause is over."""
        self.now, self._trial, self._left = threads, None, self._pause
        self._begin_window(self._size)
