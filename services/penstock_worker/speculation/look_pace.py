"""How often it is looked up what might follow a sequence."""

from __future__ import annotations

from collections.abc import Sequence

WRONG = 3
"""Guesses in a row that may be wrong before a sequence is left alone for a while."""
LONGEST = 16
"""Tokens for which it is left alone at most."""
IDLE, GLANCE = 8, 4
"""After so many tokens in a row after which nothing was found, there is a look at every so many
only."""


class LookPace:
    """A look costs up to 12 µs of every step, and of each sequence in it; 50 without the kernels'
    library. Text that repeats nothing gains nothing by that: so where guesses turn out wrong, or
    there are none, looks become rare. One guess that is right brings them all back."""

    __slots__ = ("_idle", "_next", "_wrong")

    def __init__(self) -> None:
        self._wrong = 0  # guesses in a row
        self._idle = 0  # looks in a row that found nothing
        self._next = 0  # number of tokens at the next look

    def due(self, known: int) -> bool:
        """Whether there is a look, where so many tokens are known."""
        return known >= self._next

    def judge(self, guess: Sequence[int], came: int) -> None:
        """`came`: the token that came where `guess` was expected."""
        self._wrong = 0 if guess[0] == came else self._wrong + 1

    def looked(self, known: int, *, found: bool) -> None:
        """There was a look."""
        self._idle = 0 if found else self._idle + 1
        rest = GLANCE if self._idle > IDLE else 1
        if self._wrong > WRONG:
            rest = max(rest, min(2 ** (self._wrong - WRONG), LONGEST))
        self._next = known + rest
