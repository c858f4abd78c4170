"""Processes that are ended where they take too much processor time, or get none."""

from __future__ import annotations

import threading
from typing import Protocol

from penstock.process.isolated import (
    CRASHES,
    Crashed,
    Died,
    Frozen,
    Stalled,
    Standstill,
    cpu_seconds,
)

LOOK = 0.05
"""Seconds between looks at how much it has taken."""


class WatchedProcess(Protocol):
    """A process that is watched: an own one, or a fork of one."""

    pid: int

    def kill(self) -> None:
        """Kills the process. May be called from any thread."""


class ProcessorWatch:
    """Ends a process, from a thread, where it takes more processor time than so many seconds or
    gets none."""

    def __init__(self, process: WatchedProcess, seconds: float) -> None:
        self.reason: Exception | None = None
        """Why it was ended, if it was: Stalled or Frozen."""
        self._process = process
        self._end = (cpu_seconds(process.pid) or 0.0) + seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The exchange is over. Whoever asks for `reason` afterwards gets the last word."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        standstill, looks = Standstill(self._process.pid), 0
        while not self._done.wait(LOOK):
            looks += 1
            if (cpu_seconds(self._process.pid) or 0.0) > self._end:
                self.reason = Stalled()
            elif looks * LOOK >= standstill.every:
                looks = 0
                if standstill.look():
                    self.reason = Frozen()
            if self.reason is not None:
                self._process.kill()
                return


def reason_of(code: int | None) -> Exception:
    """Why a process has ended that nobody here has ended: Crashed or Died."""
    return Crashed() if code in CRASHES else Died(f"exit code {code}")
