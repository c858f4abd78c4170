"""Counts of what a card and its host hand to each other for experts in the host's memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HandOverCounts:
    """Counts since the model was loaded. Each number is changed by one thread, and read by any.
    Seconds of transfers are the device's own."""

    host_rows: int = 0
    """Rows that the host computed, each as often as it had experts there."""
    card_rows: int = 0
    """The same of rows whose experts were copied to the card."""
    experts_copied: int = 0
    down_bytes: int = 0
    """Of rows with their experts and shares, to the host."""
    up_bytes: int = 0
    """Of results, to the card."""
    expert_bytes: int = 0
    """Of experts, to the card."""
    down_seconds: float = 0.0
    up_seconds: float = 0.0
    expert_seconds: float = 0.0
    host_seconds: float = 0.0
    """What the host's kernels computed."""

    def rows(self) -> dict[str, int]:
        """Returns rows by where they were computed."""
        return {"host": self.host_rows, "card": self.card_rows}

    def moved_bytes(self) -> dict[str, int]:
        """Returns bytes by what they were."""
        return {"down": self.down_bytes, "up": self.up_bytes, "experts": self.expert_bytes}

    def seconds(self) -> dict[str, float]:
        """Returns seconds by what took them."""
        return {
            "down": self.down_seconds,
            "up": self.up_seconds,
            "experts": self.expert_seconds,
            "computing": self.host_seconds,
        }
