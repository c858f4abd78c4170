"""How much of an encoder's work a step may hold."""

from __future__ import annotations

import math

UNKNOWN = 100
"""Millions of multiplications that a step may encode while nobody knows what they take."""

WEIGHT = 0.25
"""Weight of the newest step in what is known."""

LEAST = 10
"""Least work of a step from whose time something is learnt: every step may hold as much. A step
that was held up by something else would otherwise be the last of which anything is learnt."""


class EncoderPace:
    """Learns what a unit of MediaReady.work takes."""

    def __init__(self) -> None:
        self._each: float | None = None  # seconds

    def observe(self, work: int, seconds: float) -> None:
        """A step was settled that encoded so much. seconds: that it took; 0: unknown."""
        if work < LEAST or seconds <= 0.0:
            return
        new = seconds / work
        self._each = new if self._each is None else self._each + WEIGHT * (new - self._each)

    def within(self, seconds: float) -> float:
        """Work that takes no longer than that; LEAST in any case."""
        if math.isinf(seconds):
            return math.inf
        return UNKNOWN if self._each is None else max(LEAST, seconds / self._each)
