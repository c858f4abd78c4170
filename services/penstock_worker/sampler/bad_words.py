"""Token sequences that an output must not contain.

They are matched by an automaton over token ids (Aho and Corasick, "Efficient string matching",
1975). Its states are the proper prefixes of words; an output is in the state of the longest prefix
that it ends with.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

_START = 0
_NO_STATE = -1
_TOKEN_BITS = 32
"""A transition's key is one integer: the state, shifted by this many bits, and the token."""


class Banned(msgspec.Struct, frozen=True):
    """Ids that must not come next."""

    ids: frozenset[int]
    """The ids as a set."""
    array: np.ndarray
    """The ids as int32, ascending, read-only."""

    @staticmethod
    def of(ids: Iterable[int]) -> Banned:
        own = frozenset(ids)
        array = np.array(sorted(own), dtype=np.int32)
        array.setflags(write=False)
        return Banned(own, array)


NOTHING = Banned.of(())


class BadWords:
    """The words of one request. All of its sequences share this automaton; each has a state of its
    own. May be used by several threads.

    Each word has at least one token. Construction takes time and memory in proportion to the words'
    tokens. What `banned` caches is bounded by the square of the number of words.
    """

    def __init__(self, words: Iterable[tuple[int, ...]]) -> None:
        self._onward: dict[int, int] = {}
        """Transitions, by state and token: the state that is one token longer."""
        self._last: dict[int, list[int]] = {}
        """Ids that complete a word of which only the last token is missing, by state."""
        self._failure_links = [_NO_STATE]
        """Failure links, by state: the longest other state that it ends with."""
        self._ended = [_NO_STATE]
        """The longest state in `_last` that each state ends with, which may be itself."""
        self._kept: dict[int, Banned] = {}
        self._set_failure_links(self._make_states(words))

    @property
    def follows_output(self) -> bool:
        """Whether `banned` differs between states."""
        return bool(self._onward)

    def after(self, output: Iterable[int]) -> int:
        """Returns the state after an output."""
        state = _START
        for token in output:
            state = self.step(state, token)
        return state

    def step(self, state: int, token: int) -> int:
        """Returns the state after one more token. Takes constant time on average over an output,
        because failure links are followed at most as often as tokens have been matched."""
        onward, fall = self._onward, self._failure_links
        while state != _NO_STATE:
            found = onward.get(state << _TOKEN_BITS | token)
            if found is not None:
                return found
            state = fall[state]
        return _START

    def banned(self, state: int) -> Banned:
        """Returns the ids that would complete a word in this state. Computed on first use and
        cached."""
        longest = self._ended[state]
        if longest == _NO_STATE:
            return NOTHING
        found = self._kept.get(longest)
        if found is None:
            found = self._kept[longest] = Banned.of(self._completing(longest))
        return found

    def _completing(self, state: int) -> set[int]:
        """Returns the ids that complete a word. `state` must be in `_last`."""
        ids: set[int] = set()
        while state != _NO_STATE:
            ids.update(self._last[state])
            shorter = self._failure_links[state]
            state = _NO_STATE if shorter == _NO_STATE else self._ended[shorter]
        return ids

    def _make_states(self, words: Iterable[tuple[int, ...]]) -> list[list[tuple[int, int, int]]]:
        """Makes the states, whose failure links all lead to the start. Returns, for each length,
        [(state, the state it extends, by which token)]."""
        onward, lengths = self._onward, list[list[tuple[int, int, int]]]()
        for word in words:
            state = _START
            for length, token in enumerate(word[:-1]):
                key = state << _TOKEN_BITS | token
                longer = onward.get(key)
                if longer is None:
                    longer = onward[key] = len(self._failure_links)
                    self._failure_links.append(_START)
                    if length == len(lengths):
                        lengths.append([])
                    lengths[length].append((longer, state, token))
                state = longer
            self._last.setdefault(state, []).append(word[-1])
        return lengths

    def _set_failure_links(self, lengths: list[list[tuple[int, int, int]]]) -> None:
        """Sets the failure links, shortest states first, so that the links it follows are already
        set."""
        fall, last = self._failure_links, self._last
        ended = self._ended = [_NO_STATE] * len(fall)
        if _START in last:
            ended[_START] = _START
        for length in lengths:
            for state, before, token in length:
                shorter = fall[before]
                fall[state] = _START if shorter == _NO_STATE else self.step(shorter, token)
                ended[state] = state if state in last else ended[fall[state]]
