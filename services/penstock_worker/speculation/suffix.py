"""Drafts what mostly followed a sequence's last tokens, here and in recent outputs."""

from __future__ import annotations

from penstock_worker.speculation.following import FollowedSlot
from penstock_worker.speculation.lookup import RunLengths
from penstock_worker.speculation.recent import RecentOutputs
from penstock_worker.speculation.run_search import run_search


class SuffixLookup:
    """After SuffixDecoding (Oliaro et al. 2024, arXiv:2411.04975): what followed the longest suffix
    of the tokens, the most frequent first, where that is likely enough, and the longer the longer
    the suffix.

    There, trees hold all suffixes of the request and of earlier outputs, with counts. Here, a chain
    leads to the newest occurrences of a run, and what followed these is counted when it is needed:
    a token is added in the same time whatever the tokens are, and old ones are forgotten by the
    list. Other sequences are looked at only if they had the same scope.
    """

    def __init__(self, reach: RunLengths, recent: RecentOutputs | None = None) -> None:
        """`recent`: outputs that have ended; None: the request's own tokens are all that is
        known."""
        self._reach = reach
        self._recent = recent

    def guess(self, followed: FollowedSlot, most: int) -> list[int]:
        tail = followed.tail(self._reach.most)
        if len(tail) < self._reach.least:
            return []
        indexes = [followed.index(self._reach.least)]
        if self._recent is not None:
            indexes += self._recent.of(followed.scope)
        return run_search().voted(indexes, tail, self._reach.most, most)

    def ended(self, followed: FollowedSlot) -> None:
        if self._recent is not None:
            begin = max(0, followed.slot.num_prompt - self._reach.most)
            output = followed.slot.token_ids[begin : followed.known]
            self._recent.add(followed.scope, output)

    def clear(self) -> None:
        if self._recent is not None:
            self._recent.clear()
