"""Drafts what followed a sequence's last tokens earlier in the request."""

from __future__ import annotations

from penstock_worker.speculation.following import FollowedSlot
from penstock_worker.speculation.lookup import RunLengths
from penstock_worker.speculation.run_search import run_search


class PromptLookup:
    """Prompt lookup decoding (Saxena 2023), as vLLM's `ngram`: the longest run of the last tokens
    that occurred earlier in prompt or output, and what followed it the last time."""

    def __init__(self, reach: RunLengths) -> None:
        self._reach = reach

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        tail = followed.tail(self._reach.most)
        if len(tail) < self._reach.least:
            return []
        return run_search().latest(followed.index(self._reach.least), tail, most)

    def ended(self, followed: FollowedSlot) -> None:
        """Nothing is kept of other sequences."""

    def clear(self) -> None:
        """There is nothing to forget."""
