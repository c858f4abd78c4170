"""Earlier occurrences of a sequence's last tokens, and what followed them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from penstock_worker.speculation.token_index import TokenIndex

CANDIDATES = 24
"""Earlier runs that are compared with a sequence's last tokens, in each list: a text that repeats
itself throughout costs no more than any other."""
ENOUGH = 8
"""Matches as long as can be, behind which no others are looked for."""
SEPARATOR = -1
"""In place of a token: what follows has nothing to do with what was before."""


class FoundRun(NamedTuple):
    """A run that equals a sequence's last tokens."""

    length: int  # Tokens that are equal.
    place: int  # Of the run's last token.
    tokens: Sequence[int]  # The list that it was found in.

    def following(self, most: int) -> list[int]:
        """Returns what followed the run: `most` tokens, fewer where a separator comes first. Behind
        the end of the list it goes on with itself, as a sequence does that repeats itself."""
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
