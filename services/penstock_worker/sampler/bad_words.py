"""Sequences of tokens that an output may not hold."""

from __future__ import annotations

from collections.abc import Sequence


class BadWords:
    """Says which tokens would complete one of `words`, each at least one token long.

    Only the words whose last token but one has just come are looked at.
    """

    def __init__(self, words: Sequence[Sequence[int]], output: Sequence[int]) -> None:
        self._always = frozenset(word[0] for word in words if len(word) == 1)
        self._after: dict[int, list[tuple[int, ...]]] = {}
        longest = 1
        for word in words:
            longest = max(longest, len(word))
            if len(word) > 1:
                self._after.setdefault(word[-2], []).append(tuple(word))
        self._needed = longest - 1
        self._tail: list[int] = []
        self.banned = self._always
        if self._needed:
            for token in output[-self._needed :]:
                self.advance(token)

    @property
    def follows_output(self) -> bool:
        """Whether `banned` ever changes."""
        return self._needed > 0

    def advance(self, token: int) -> None:
        """The output has one token more. Sets `banned`: ids that can't be the next."""
        if not self._needed:
            return
        self._tail = [*self._tail[1 - self._needed :], token] if self._needed > 1 else [token]
        completed = [
            word[-1]
            for word in self._after.get(token, ())
            if self._tail[1 - len(word) :] == list(word[:-1])
        ]
        self.banned = self._always.union(completed) if completed else self._always
