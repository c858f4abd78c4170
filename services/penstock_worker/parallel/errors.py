"""What may go wrong between ranks."""

from __future__ import annotations


class GroupLost(Exception):
    """The group can't go on or can't form: a rank is gone, or this one was told to leave. All its
    ranks fail as one; the engine core has them form another."""
