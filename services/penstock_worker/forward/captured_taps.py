"""What graphs take of a pass for a head: a graph's own memory is used again by the next one."""

from __future__ import annotations

from torch import Tensor

from penstock_worker.models.taps import Taps


class CapturedTaps:
    """Residuals of the latest step that a graph has computed."""

    def __init__(self, taps: Taps, rows: Tensor) -> None:
        """`rows`: [most rows, hidden of all taps], which all graphs write to."""
        self._taps = taps
        self._rows = rows

    def store(self, count: int) -> None:
        """Moves those of a pass over so many rows to where they stay. A part of the graph."""
        self._rows[:count].copy_(self._taps.taken(count))

    def replayed(self) -> None:
        """Called when a graph has been queued. What it takes is read before the next step is
        queued."""
        self._taps.put(self._rows)
