"""How much a step may hold, so that those who decode don't wait long for their next token."""

from __future__ import annotations

import math

SHORT = 0.1
"""Seconds that a step may take in any case."""

LEAST = 16
"""Tokens that a step may always have beside the decodes that it is held against."""

UNKNOWN = 64
"""The same while nobody knows what prefill costs here."""

WEIGHT = 0.25
"""Of the newest step in what is known."""

SLOWER = 0.05
"""The same where it took longer than the decodes alone are known to take: whatever else the machine
was busy with is no reason to make steps longer yet."""


class StepPace:
    """Learns what steps cost, as seconds = base + each * tokens, and bounds them by it.

    `base` is learnt from steps of decodes alone, `each` from steps with prefill: so neither is
    forgotten while only the other kind comes.

    slowdown: how many times as long as the decodes alone a step beside them may take; 0: there is
    no bound.
    """

    def __init__(self, slowdown: float = 0.0) -> None:
        self._slowdown = slowdown
        self._base = 0.0
        self._each: float | None = None
        self._decoded = False

    def observe(self, decodes: int, tokens: int, seconds: float) -> None:
        """A step was settled: `tokens` in all, `decodes` of them of sequences that had no more to
        compute. seconds: that the worker computed; 0: unknown, and not counted."""
        if seconds <= 0.0 or not tokens:
            return
        if decodes == tokens:
            base = max(seconds - (self._each or 0.0) * tokens, 0.0)
            weight = WEIGHT if base < self._base else SLOWER
            self._base = _blend(self._base, base, weight) if self._decoded else base
            self._decoded = True
        elif tokens - decodes >= LEAST // 2:
            # Where decodes alone took as long as this, they were slow for another reason.
            each = max(seconds - self._base, 0.02 * seconds) / tokens
            self._each = each if self._each is None else _blend(self._each, each, WEIGHT)

    def tokens(self, decodes: int) -> float:
        """Tokens that a step with so many decodes may have in all; without decodes, any number."""
        if not decodes or not self._slowdown:
            return math.inf
        if self._each is None:
            return decodes + UNKNOWN
        alone = self._base + self._each * decodes
        seconds = max(SHORT, self._slowdown * alone)
        return max(decodes + LEAST, (seconds - self._base) / self._each)


def _blend(known: float, new: float, weight: float) -> float:
    return known + weight * (new - known)
