"""Sequences of tokens that an output may not hold.

An automaton over token ids: Aho and Corasick, "Efficient string matching", 1975.  Its states are
the beginnings of words; an output is in that of the longest one that it ends in.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

_START = 0
_NO_STATE = -1
_TOKEN_BITS = 32
"""A step of the automaton has one number as its key: the state, and the token in so many bits."""


class Banned(msgspec.Struct, frozen=True):
    """Ids that can't come next. array: the same, int32, ascending, not to be changed."""

    ids: frozenset[int]
    array: np.ndarray

    @staticmethod
    def of(ids: Iterable[int]) -> Banned:
        own = frozenset(ids)
        array = np.array(sorted(own), dtype=np.int32)
        array.setflags(write=False)
        return Banned(own, array)


NOTHING = Banned.of(())


class BadWords:
    """The words of one request, shared by all its sequences: each has a state of its own. May be
    asked from several threads.

    words: each at least one token long.  Takes time and memory in proportion to their tokens; what
    `banned` keeps is bounded by the square of their number.
    """

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self._onward: dict[int, int] = {}
        """By state and token: the state that is one token longer."""
        self._last: dict[int, list[int]] = {}
        """By state: ids that complete a word of which only that token is missing."""
        self._fall = [_NO_STATE]
        """By state: the longest other one that it ends in."""
        self._ended = [_NO_STATE]
        """By state: the longest in `_last` that it ends in, itself among them."""
        self._kept: dict[int, Banned] = {}
        self._link(self._begin(words))

    @property
    def follows_output(self) -> bool:
        """Whether `banned` is another in some state than at the start."""
        return bool(self._onward)

    def after(self, output: Iterable[int]) -> int:
        """The state after an output."""
        state = _START
        for token in output:
            state = self.step(state, token)
        return state

    def step(self, state: int, token: int) -> int:
        """The state after one more token. Constant time, as a mean over an output: a state falls
        no more often than tokens have led onward."""
        onward, fall = self._onward, self._fall
        while state != _NO_STATE:
            found = onward.get(state << _TOKEN_BITS | token)
            if found is not None:
                return found
            state = fall[state]
        return _START

    def banned(self, state: int) -> Banned:
        """What would complete a word now. Made when it is first asked for, and kept."""
        longest = self._ended[state]
        if longest == _NO_STATE:
            return NOTHING
        found = self._kept.get(longest)
        if found is None:
            found = self._kept[longest] = Banned.of(self._completing(longest))
        return found

    def _completing(self, state: int) -> set[int]:
        """state: of `_last`."""
        ids: set[int] = set()
        while state != _NO_STATE:
            ids.update(self._last[state])
            shorter = self._fall[state]
            state = _NO_STATE if shorter == _NO_STATE else self._ended[shorter]
        return ids

    def _begin(self, words: Iterable[tuple[int, ...]]) -> list[list[tuple[int, int, int]]]:
        """Makes the states, falling nowhere yet. By their length: (state, the one that it goes on
        from, by which token)."""
        onward, lengths = self._onward, list[list[tuple[int, int, int]]]()
        for word in words:
            state = _START
            for length, token in enumerate(word[:-1]):
                key = state << _TOKEN_BITS | token
                longer = onward.get(key)
                if longer is None:
                    longer = onward[key] = len(self._fall)
                    self._fall.append(_START)
                    if length == len(lengths):
                        lengths.append([])
                    lengths[length].append((longer, state, token))
                state = longer
            self._last.setdefault(state, []).append(word[-1])
        return lengths

    def _link(self, lengths: list[list[tuple[int, int, int]]]) -> None:
        """Finds where states fall, the shortest first: all that they fall to are linked by then."""
        fall, last = self._fall, self._last
        ended = self._ended = [_NO_STATE] * len(fall)
        if _START in last:
            ended[_START] = _START
        for length in lengths:
            for state, before, token in length:
                shorter = fall[before]
                fall[state] = _START if shorter == _NO_STATE else self.step(shorter, token)
                ended[state] = state if state in last else ended[fall[state]]
