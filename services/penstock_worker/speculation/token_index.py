"""An index of runs of tokens in a list of tokens that grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

MULTIPLIER = 0x9E3779B97F4A7C15
"""The base of the polynomial that makes a key of a run. Keys of different runs may be equal: a
look-up compares the run's tokens."""
MASK = 2**64 - 1
FEW = 32
"""Runs that are cheaper to hash one by one than as an array."""


class TokenIndex:
    """Chains of equal runs, newest first, as in DEFLATE's search for matches (RFC 1951, section 4).

    Each run of `width` tokens has a key; of each key the newest run is known, and of each run the
    one before it with the same key. A token costs the same however many there are.
    """

    def __init__(
        self, width: int, tokens: Sequence[int], base: TokenIndex | None = None, at: int = 0
    ) -> None:
        """`tokens` may grow, and are indexed by `extend`. `base` has indexed the first `at` of
        these very tokens, and is not extended any more: sequences of a request share their
        prompt's."""
        self.width = width
        self.tokens = tokens
        self.end = max(at, width - 1)
        """Runs that end before this token are indexed."""
        self._base = base
        self._first = self.end
        self._newest: dict[int, int] = {}
        self._older: list[int] = []

    def extend(self, end: int) -> None:
        """Indexes all runs that end before token `end`."""
        begin = self.end
        if end <= begin:
            return
        newest, older, base = self._newest, self._older, self._base
        for place, key in enumerate(self._keys(begin, end), begin):
            found = newest.get(key, -1)
            older.append(base.newest(key) if found < 0 and base is not None else found)
            newest[key] = place
        self.end = end

    def newest(self, key: int) -> int:
        """Returns the last token of the newest run with this key, -1 if there is none."""
        found = self._newest.get(key, -1)
        return self._base.newest(key) if found < 0 and self._base is not None else found

    def runs(self, tail: Sequence[int], most: int) -> Iterator[int]:
        """Yields the last token of runs that may equal the end of `tail`, which has at least
        `width` tokens: the newest first, and `most` of them."""
        place = self.newest(key_of(tail[len(tail) - self.width :]))
        for _ in range(most):
            if place < 0:
                return
            yield place
            place = self._before(place)

    def _before(self, place: int) -> int:
        if place >= self._first:
            return self._older[place - self._first]
        return -1 if self._base is None else self._base._before(place)

    def _keys(self, begin: int, end: int) -> list[int]:
        """Returns the keys of the runs whose last tokens are [begin, end)."""
        low = begin - self.width + 1
        tokens = self.tokens[low:end]
        if end - begin <= FEW:
            return [key_of(tokens[at : at + self.width]) for at in range(end - begin)]
        values = np.array(tokens, dtype=np.int64).view(np.uint64)
        keys = np.zeros(end - begin, np.uint64)
        for at in range(self.width):
            keys = keys * np.uint64(MULTIPLIER) + values[at : at + end - begin]
        return keys.tolist()


def key_of(run: Sequence[int]) -> int:
    """Returns the key of a run."""
    key = 0
    for token in run:
        key = key * MULTIPLIER + token
    return key & MASK
