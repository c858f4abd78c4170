"""Earlier occurrences of a sequence's last tokens, and what followed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock_worker.speculation.token_index import TokenIndex

CANDIDATES = 24
"""Earlier runs that are compared with a sequence's last tokens, in each list: a text that repeats
itself throughout costs no more than any other."""
ENOUGH = 8
"""Matches as long as can be, after which no others are looked for."""
STRETCH = 2
"""Drafted tokens for each token that a match has: the longer what went before is the same, the
longer will be what comes. A match of full length has no such bound."""
LIKELY = 0.3
"""A draft ends where it is less likely than this to be right so far, if each of what followed is as
likely as it was frequent."""
SEPARATOR = -1
"""What stands in place of a token: what follows has nothing to do with what was before."""


class FoundRun(NamedTuple):
    """A run that equals a sequence's last tokens."""

    length: int  # Tokens that are equal.
    place: int  # Of the run's last token.
    tokens: Sequence[int]  # The list that it was found in.

    def following(self, most: int) -> list[int]:
        """Returns what followed the run: `most` tokens, fewer where a separator comes first. At the
        end of the list it continues with itself, as a sequence does that repeats itself."""
        begin = self.place + 1
        found = list(self.tokens[begin : begin + most])
        if SEPARATOR in found:
            return found[: found.index(SEPARATOR)]
        period = len(found)
        while 0 < len(found) < most:
            found.append(found[-period])
        return found


def longest_matches(index: TokenIndex, tail: Sequence[int]) -> list[FoundRun]:
    """Returns the runs that have the most of the last tokens in common with `tail`, at least
    `index.width`, the newest first. `tail` has at least as many."""
    found: list[FoundRun] = []
    tokens, width = index.tokens, index.width
    best = width
    for place in index.runs(tail, CANDIDATES):
        length = _common(tokens, place, tail)
        if length > best:
            best, found = length, []
        if length == best and length >= width:
            found.append(FoundRun(length, place, tokens))
            if length == len(tail) and len(found) == ENOUGH:
                break
    return found


def _common(tokens: Sequence[int], place: int, tail: Sequence[int]) -> int:
    """Returns how many tokens up to `place` equal the end of `tail`."""
    most = min(len(tail), place + 1)
    if tokens[place + 1 - most : place + 1] == tail[-most:]:
        return most
    for length in range(most):
        if tokens[place - length] != tail[-1 - length]:
            return length
    return most


def most_voted(
    indexes: Sequence[TokenIndex], tail: Sequence[int], longest: int, most: int
) -> list[int]:
    """Returns at most `most` ids: what most of the longest matches of all indexes go on with.
    `longest`: tokens of a match at most. `tail` has at least the indexes' width of tokens."""
    found = [match for index in indexes for match in longest_matches(index, tail)]
    if not found:
        return []
    length = max(match.length for match in found)
    if length < longest:
        most = min(most, STRETCH * length)
    return _vote([match for match in found if match.length == length], most)


def latest(index: TokenIndex, tail: Sequence[int], most: int) -> list[int]:
    """Returns at most `most` ids: what the newest of the longest matches goes on with."""
    found = longest_matches(index, tail)
    return found[0].following(most) if found else []


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
