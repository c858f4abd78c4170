"""Sums over time in a bounded number of bins, whatever the length of the run."""

from __future__ import annotations

MOST_BINS = 512


class Series:
    """Bins of equal width; when there are too many, neighbours are joined and the width doubles.

    width: seconds.  sums: of what was added.  peaks: the largest level that was shown.
    """

    __slots__ = ("peaks", "sums", "width")

    def __init__(self) -> None:
        self.width = 1.0
        self.sums: list[int] = []
        self.peaks: list[int] = []

    def add(self, at: float, amount: int, level: int) -> None:
        index = int(at / self.width)
        while index >= MOST_BINS:
            self._join()
            index = int(at / self.width)
        sums, peaks = self.sums, self.peaks
        while len(sums) <= index:
            sums.append(0)
            peaks.append(0)
        sums[index] += amount
        if level > peaks[index]:
            peaks[index] = level

    def _join(self) -> None:
        self.sums = [sum(self.sums[at : at + 2]) for at in range(0, len(self.sums), 2)]
        self.peaks = [max(self.peaks[at : at + 2]) for at in range(0, len(self.peaks), 2)]
        self.width *= 2
