"""Counts of KV blocks between this worker and others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransferCounts:
    """Counts since the model was loaded. Each number is changed by one thread, and read by any."""

    fetched: int = 0
    """Blocks that came from another worker. Their digests are compared before use."""
    fetched_bytes: int = 0
    gone: int = 0
    """Blocks that another one had when it was asked, and no more when they were fetched."""
    faults: int = 0
    """Times that another one was silent for too long, or said what made no sense."""
    served: int = 0
    """Blocks that were sent to others."""
    served_bytes: int = 0

    def blocks(self) -> dict[str, int]:
        """Numbers of blocks by what became of them."""
        return {"fetched": self.fetched, "gone": self.gone, "served": self.served}

    def moved_bytes(self) -> dict[str, int]:
        """Bytes that were moved, by their direction."""
        return {"in": self.fetched_bytes, "out": self.served_bytes}
