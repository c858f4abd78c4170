"""Resident memory of processes, second by second, and whether it drifts."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

WINDOW = 60.0


@dataclass
class Memory:
    """at: seconds since the beginning.  rss: MiB by process.  open: streams at that moment."""

    at: list[float] = field(default_factory=list)
    rss: dict[str, list[float]] = field(default_factory=dict)
    open: list[int] = field(default_factory=list)

    async def watch(
        self, pids: Mapping[str, int], count: Callable[[], int], seconds: float
    ) -> None:
        """Looks each second, for so many seconds."""
        processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self.rss = {name: [] for name in processes}
        begun = time.monotonic()
        while (now := time.monotonic() - begun) < seconds:
            self.at.append(now)
            self.open.append(count())
            for name, process in processes.items():
                self.rss[name].append(process.memory_info().rss / 2**20)
            await asyncio.sleep(max(0.0, 1 - (time.monotonic() - begun - now)))

    def drift(self, name: str, warm_up: float, seconds: float) -> tuple[float, float, float]:
        """MiB in the first minute after the warm-up and in the last one (medians), and by which
        share it grew.  Where less than four minutes follow, their first and last quarter.

        warm_up: seconds, at the beginning of so many `seconds` in all.
        """
        window = min(WINDOW, (seconds - warm_up) / 4)
        early = self._median(self.rss[name], warm_up, warm_up + window)
        late = self._median(self.rss[name], seconds - window, seconds)
        return early, late, late / early - 1

    def fewest_open(self, warm_up: float) -> int:
        """Streams open at a time, after the warm-up."""
        return min(n for at, n in zip(self.at, self.open, strict=True) if at >= warm_up)

    def _median(self, values: list[float], begin: float, end: float) -> float:
        inside = [v for at, v in zip(self.at, values, strict=True) if begin <= at < end]
        return statistics.median(inside)
