"""Whether an engine core works, which is another question than whether its process lives."""

from __future__ import annotations


class Works:
    """Beats say that the process lives; that it works its Status says, which is due at each beat.

    limit: seconds without one (or without a Welcome) that are borne.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._told_at = 0.0

    def told(self, now: float) -> None:
        """It has said something that only its loop says."""
        self._told_at = now

    def not_heard(self, seconds: float, now: float) -> None:
        """We ourselves did not listen for so long: what it told may be on its way still."""
        if seconds > self._limit / 2:
            self._told_at = now

    def stuck(self, now: float) -> str:
        """Why it is to be given up; empty: it isn't."""
        if now - self._told_at <= self._limit:
            return ""
        return f"the engine core is alive but sent no status for {self._limit:g} s"
