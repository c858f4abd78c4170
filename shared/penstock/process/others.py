"""How busy the machine is with what isn't this process. Standard library only."""

from __future__ import annotations

import os
import time
from pathlib import Path

STAT = Path("/proc/stat")
_IDLE = (3, 4)
"""Places of idle and iowait in the line of all processors; steal, the eighth, counts as others'."""
_TIMES = 8


class Others:
    """Counts from when it is made."""

    def __init__(self, stat: Path = STAT) -> None:
        self._stat = stat
        self._own = time.process_time()
        self._before = _times(stat)

    def share(self) -> float:
        """The share of all processors' time since then that other processes took, or the host gave
        to other machines: 0 to 1. 0 where the system doesn't say."""
        before, now = self._before, _times(self._stat)
        total = sum(now) - sum(before)
        if total <= 0:
            return 0.0
        idle = sum(now[place] - before[place] for place in _IDLE)
        own = time.process_time() - self._own
        return min(1.0, max(0.0, (total - idle - own) / total))


def _times(stat: Path) -> list[float]:
    """Seconds of all processors: user, nice, system, idle, iowait, irq, softirq, steal."""
    try:
        words = stat.read_text().split("\n", 1)[0].split()
        return [int(word) / os.sysconf("SC_CLK_TCK") for word in words[1 : 1 + _TIMES]]
    except (OSError, ValueError):
        return [0.0] * _TIMES
