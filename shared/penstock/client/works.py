"""Whether an engine core makes progress, which its heartbeats don't tell."""

from __future__ import annotations


class Works:
    """Notices an engine core whose process lives but whose loop is stuck.

    Heartbeats say only that the process lives.  Status and Welcome come from the engine core's
    loop; a Status is due with each heartbeat.

    limit: seconds without either of them after which the engine core counts as stuck.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._told_at = 0.0

    def told(self, now: float) -> None:
        """Notes that a message has come that only the engine core's loop sends."""
        self._told_at = now

    def not_heard(self, seconds: float, now: float) -> None:
        """Notes that this process did not read messages for so many seconds. If these are many, the
        limit starts again: what the engine core sent may still be unread."""
        if seconds > self._limit / 2:
            self._told_at = now

    def stuck(self, now: float) -> str:
        """Why the session is to be ended; empty if the engine core makes progress."""
        if now - self._told_at <= self._limit:
            return ""
        return f"the engine core is alive but sent no status for {self._limit:g} s"
