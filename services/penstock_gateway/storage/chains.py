"""What can be wrong with the conversation that a stored response ends, wherever it is kept."""

from __future__ import annotations

MAX_LINKS = 1000
"""Responses of one conversation."""


class BrokenChain(Exception):
    """A response is not there. id: its."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id


class UnfitChain(Exception):
    """A conversation that can't be gone on from. Its text says why."""
