"""What becomes of the server's processes meanwhile."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LOST = ("session with the engine core ended", "session with the engine ended")
"""What a gateway and a worker say of a session that is over."""


@dataclass
class Memory:
    """at: seconds since the beginning.  rss: MiB by process; None while it wasn't there.
    restarts: processes that another took the place of."""

    at: list[float] = field(default_factory=list)
    rss: dict[str, list[float | None]] = field(default_factory=dict)
    restarts: int = 0
    _pids: dict[str, int] = field(default_factory=dict)

    async def watch(self, processes: Callable[[], dict[str, int]], seconds: float) -> None:
        """Looks each second, for so many. processes: pid by name."""
        begun = time.monotonic()
        while (now := time.monotonic() - begun) < seconds:
            self.look(processes(), now)
            await asyncio.sleep(max(0.0, 1 - (time.monotonic() - begun - now)))

    def look(self, pids: dict[str, int], at: float) -> None:
        """One sample."""
        self.at.append(at)
        for name in pids:
            self.rss.setdefault(name, [None] * (len(self.at) - 1))
        for name, values in self.rss.items():
            values.append(_resident(pids.get(name)))
        for name, pid in pids.items():
            self.restarts += self._pids.get(name, pid) != pid
        self._pids |= pids

    def drift(self, name: str, begin: float) -> tuple[float, float] | None:
        """Medians, in MiB: of the first quarter after `begin` seconds, and of the last. None: too
        little is known."""
        known = [
            (at, value)
            for at, value in zip(self.at, self.rss[name], strict=True)
            if value is not None and at >= begin
        ]
        if len(known) < 4:
            return None
        window = (self.at[-1] - begin) / 4
        early = [value for at, value in known if at <= begin + window]
        late = [value for at, value in known if at >= self.at[-1] - window]
        if not early or not late:
            return None
        return statistics.median(early), statistics.median(late)


def _resident(pid: int | None) -> float | None:
    if pid is None:
        return None
    try:
        return float(psutil.Process(pid).memory_info().rss) / 2**20
    except psutil.NoSuchProcess:
        return None


def sessions_lost(log: Path) -> list[str]:
    """The lines of the server's log that tell of one."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if any(words in line for words in LOST)]
