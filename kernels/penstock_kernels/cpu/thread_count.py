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
"""Steps that are looked at together; of their times, the middle one counts."""
MUCH = 0.1
"""Share of the threads' time that they may wait for each other (beyond spinning, which is short)
before fewer are tried."""
FASTER = 0.9
"""Of the time with more threads, what fewer may take to stay."""
SHORTEST, LONGEST = 32, 1024
"""Steps until the next trial: twice as many after each that was in vain."""
ALIKE = 1.25
"""Times the rows up to which two steps are compared."""


@dataclass(slots=True)
class _Trial:
    """Of another number of threads. before, seconds, rows: the number, time and rows that it is
    compared with."""

    before: int
    seconds: float
    rows: int


@dataclass(slots=True)
class ThreadCount:
    """Says before each step how many threads are to compute it, and is told after it how it went.
    steady: all of them, always."""

    most: int
    steady: bool = False
    now: int = field(init=False)
    _times: list[float] = field(default_factory=list)
    _waited: float = 0.0
    """Share of the window's steps, added up."""
    _pause: int = SHORTEST
    _left: int = 0
    """Steps until a trial."""
    _trial: _Trial | None = None
    _trials: int = 0
    """In a row that were in vain."""

    def __post_init__(self) -> None:
        self.now = self.most

    def tell(self, rows: int, seconds: float, lost: float) -> None:
        """Of a step that `now` threads computed. lost: seconds that they waited for each other
        beyond spinning, of all of them together."""
        if self.steady or self.most == 1:
            return
        trial = self._trial
        if trial is not None and not trial.rows / ALIKE <= rows <= trial.rows * ALIKE:
            self._go_back(trial)  # Nothing is learned from it.
        self._times.append(seconds)
        self._waited += lost / (self.now * seconds) if seconds > 0 else 0.0
        self._left -= 1
        if len(self._times) < WINDOW:
            return
        time, waited = statistics.median(self._times), self._waited / WINDOW
        self._times.clear()
        self._waited = 0.0
        if self._trial is not None:
            self._judge(self._trial, time)
        elif self._left <= 0:
            self._try(rows, time, waited)

    def _try(self, rows: int, time: float, waited: float) -> None:
        now = self.now
        fewer = [now - max(1, now // 4), now // 2, 1] if now > 1 and waited > MUCH else []
        more = [min(now + max(1, now // 2), self.most), self.most] if now < self.most else []
        if fewer or more:
            self._trial = _Trial(now, time, rows)
            self.now = [*fewer, *more][self._trials % len(fewer + more)]

    def _judge(self, trial: _Trial, time: float) -> None:
        fewer = self.now < trial.before
        if time >= trial.seconds * (FASTER if fewer else 1.0):
            self._go_back(trial)
            self._pause = min(2 * self._pause, LONGEST)
            self._trials += 1
        else:
            self._pause, self._trials = SHORTEST, 0
        self._trial = None
        self._left = self._pause

    def _go_back(self, trial: _Trial) -> None:
        self.now, self._trial = trial.before, None
        self._times.clear()
        self._waited = 0.0
        self._left = self._pause
