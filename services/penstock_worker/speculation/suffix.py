"""Drafts what mostly followed a sequence's last tokens, here and in recent outputs."""

from __future__ import annotations

from penstock_worker.speculation.following import FollowedSlot
from penstock_worker.speculation.lookup import RunLengths
from penstock_worker.speculation.matches import FoundRun, longest_matches
from penstock_worker.speculation.recent import RecentOutputs

STRETCH = 2
"""Drafted tokens for each token that a match has: the longer what went before is the same, the
longer will be what comes. A match of full length has no such bound."""
LIKELY = 0.3
"""A draft ends where it is less likely than this to be right so far, if each of what followed is as
likely as it was frequent."""


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
        found = longest_matches(followed.index(self._reach.least), tail)
        for index in () if self._recent is None else self._recent.of(followed.scope):
            found += longest_matches(index, tail)
        if not found:
            return []
        length = max(match.length for match in found)
        if length < self._reach.most:
            most = min(most, STRETCH * length)
        return _vote([match for match in found if match.length == length], most)

    def ended(self, followed: FollowedSlot) -> None:
        if self._recent is not None:
            begin = max(0, followed.slot.num_prompt - self._reach.most)
            output = followed.slot.token_ids[begin : followed.known]
            self._recent.add(followed.scope, output)

    def clear(self) -> None:
        if self._recent is not None:
            self._recent.clear()


def _vote(matches: list[FoundRun], most: int) -> list[int]:
    """Returns the continuation that most of the matches agree on, token by token. Of those that are
    equally frequent, the one that was found first."""
    voters = [match.following(most) for match in matches]
    ids: list[int] = []
    likely = 1.0
    for at in range(most):
        votes: dict[int, int] = {}
        for voter in voters:
            if at < len(voter):
                votes[voter[at]] = votes.get(voter[at], 0) + 1
        if not votes:
            break
        token = max(votes, key=votes.__getitem__)
        likely *= votes[token] / len(voters)
        if likely < LIKELY:
            break
        ids.append(token)
        voters = [voter for voter in voters if at < len(voter) and voter[at] == token]
    return ids
