"""Resident memory of processes, second by second, and whether it drifts."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from loadtest.report.chart import chart
from loadtest.report.table import table


@dataclass
class Memory:
    at: list[float] = field(default_factory=list)  # seconds since the beginning
    rss: dict[str, list[float | None]] = field(default_factory=dict)
    """MiB of each process; None while it wasn't there."""
    open: list[int] = field(default_factory=list)  # streams at that moment, where they are counted
    restarts: int = 0  # processes that another took the place of
    _pids: dict[str, int] = field(default_factory=dict)

    async def watch(
        self,
        processes: Callable[[], dict[str, int]],
        seconds: float,
        count: Callable[[], int] = lambda: 0,
    ) -> None:
        """Looks each second, for so many. processes: pid by name.  count: of open streams."""
        begun = time.monotonic()
        while (now := time.monotonic() - begun) < seconds:
            self.look(processes(), now, count())
            await asyncio.sleep(max(0.0, 1 - (time.monotonic() - begun - now)))

    def look(self, pids: dict[str, int], at: float, streams: int = 0) -> None:
        """One sample."""
        self.at.append(at)
        self.open.append(streams)
        for name in pids:
            self.rss.setdefault(name, [None] * (len(self.at) - 1))
        for name, values in self.rss.items():
            values.append(_resident(pids.get(name)))
        for name, pid in pids.items():
            self.restarts += self._pids.get(name, pid) != pid
        self._pids |= pids

    def drift(
        self, name: str, begin: float, longest: float = float("inf")
    ) -> tuple[float, float] | None:
        """Medians, in MiB: of the first quarter after `begin` seconds, and of the last.

        longest: seconds of such a quarter, at most.  None where too little is known.
        """
        known = [
            (at, value)
            for at, value in zip(self.at, self.rss[name], strict=True)
            if value is not None and at >= begin
        ]
        if len(known) < 4:
            return None
        window = min(longest, (self.at[-1] - begin) / 4)
        early = [value for at, value in known if at <= begin + window]
        late = [value for at, value in known if at >= self.at[-1] - window]
        if not early or not late:
            return None
        return statistics.median(early), statistics.median(late)

    def growths(self, begin: float, longest: float = float("inf")) -> dict[str, dict[str, float]]:
        """The growth of each process of which enough is known: as `drift`, and by which share it
        grew."""
        drifts = {name: self.drift(name, begin, longest) for name in self.rss}
        return {
            name: {"early_mib": drift[0], "late_mib": drift[1], "growth": drift[1] / drift[0] - 1}
            for name, drift in drifts.items()
            if drift is not None
        }

    def samples(self) -> dict[str, Any]:
        """The samples for the JSON file; open streams where they were counted."""
        counted = {"open": self.open} if any(self.open) else {}
        return {"at": self.at, **counted, "rss_mib": self.rss}

    def fewest_open(self, begin: float) -> int:
        """Streams open at a time, after `begin` seconds."""
        return min(n for at, n in zip(self.at, self.open, strict=True) if at >= begin)


def growth_table(growths: dict[str, dict[str, float]], early: str, late: str) -> str:
    """Markdown. growths: as Memory has them.  early, late: headings of the two times."""
    columns = {"RSS, MiB": "{name}", early: "{early_mib:.1f}", late: "{late_mib:.1f}"}
    rows = [{"name": name, "percent": 100 * g["growth"], **g} for name, g in growths.items()]
    return table({**columns, "growth": "{percent:+.2f} %"}, rows) if rows else ""


def draw(samples: dict[str, Any], begin: float, path: Path) -> None:
    """MiB of each process, the time before `begin` gray; below it, the open streams.

    samples: as Memory has them.
    """
    at = samples["at"]
    with chart(path, rows=2, size=(9, 6), sharex=True, height_ratios=(3, 1)) as (above, below):
        for name, values in samples["rss_mib"].items():
            above.plot(at, values, label=name)
        above.axvspan(0, begin, color="lightgray")
        above.set_ylim(bottom=0)
        above.set_ylabel("RSS, MiB")
        above.legend(loc="upper left", fontsize="small")
        below.plot(at, samples.get("open", [0] * len(at)), color="gray")
        below.set_ylabel("open streams")
        below.set_xlabel("seconds")


def _resident(pid: int | None) -> float | None:
    if pid is None:
        return None
    try:
        return float(psutil.Process(pid).memory_info().rss) / 2**20
    except psutil.NoSuchProcess:
        return None
