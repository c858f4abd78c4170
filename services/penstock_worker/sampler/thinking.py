"""The budget of a sequence's thoughts: once it is spent, only what closes them can come next."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from penstock.protocol.common import ThinkingBudget

AHEAD = 8
"""Tokens of a sequence that may be on a device's queue before the host knows any of them, and some
more: max_steps_in_flight is 4 at most."""


class ThinkingState:
    """Where one sequence stands in its thoughts: a function of its output."""

    def __init__(self, wanted: ThinkingBudget, output: Sequence[int], vocab: int) -> None:
        """`output` has the ids that the sequence has emitted."""
        self._wanted = wanted
        self._vocab = vocab
        self._longest = max(map(len, (wanted.begin, *wanted.ends)))
        self._tail: tuple[int, ...] = ()
        """The newest ids, as many as the longest mark has."""
        self._spent = wanted.spent
        """Tokens of thoughts; None: outside of them."""
        self._closing = 0
        """How many ids of `closing` have been written in place of what the model would write."""
        self._over = False
        self._array: np.ndarray | None = None
        for token in output:
            self.advance(token)

    def copy(self) -> ThinkingState:
        """A state that advances by itself."""
        return copy(self)

    @property
    def forced(self) -> int | None:
        """The id that must come next; None: any may."""
        if self._over or self._spent is None or self._spent < self._wanted.tokens:
            return None
        return self._wanted.closing[self._closing]

    def advance(self, token: int) -> None:
        """Updates the state with a token that was emitted."""
        if self._over:
            return
        self._array = None
        if self.forced is not None:
            self._closing += 1
            self._over = self._closing == len(self._wanted.closing)
            return
        self._tail = (*self._tail, token)[-self._longest :]
        if self._spent is None:
            if self._tail[-len(self._wanted.begin) :] == self._wanted.begin:
                self._spent = 0
        elif any(self._tail[-len(end) :] == end for end in self._wanted.ends):
            self._over = True
        else:
            self._spent += 1

    @property
    def follows_output(self) -> bool:
        """Whether `forced` may change with tokens that the host doesn't know yet."""
        if self._over:
            return False
        return (self._spent or 0) + AHEAD >= self._wanted.tokens

    @property
    def array(self) -> np.ndarray:
        """The ids that can't come next: int32, ascending, read-only."""
        if self._array is None:
            forced = self.forced
            others = np.zeros(0, np.int32)
            if forced is not None:
                others = np.delete(np.arange(self._vocab, dtype=np.int32), forced)
            others.setflags(write=False)
            self._array = others
        return self._array

    def forbids(self, token: int) -> bool:
        """Returns whether the token must not come next."""
        return self.forced not in (None, token)
