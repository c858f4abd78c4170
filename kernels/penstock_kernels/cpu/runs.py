"""An index of runs of tokens in a list that grows, and of what mostly followed them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from penstock_kernels.cpu.library import load


class TokenRuns:
    """An index of the runs of `width` tokens. It has a copy of the tokens: 4 bytes of each, and
    some 20 of its run."""

    def __init__(self, width: int, base: TokenRuns | None = None, at: int = 0) -> None:
        """`base` has the first `at` tokens, all runs of which it has indexed, and is not extended
        any more. Raises MemoryError."""
        if width < 1 or not 0 <= at <= (0 if base is None else base.size):
            raise ValueError(f"width is {width} and at {at}; base has to have these tokens")
        self.width = width
        self.size: int = at
        """Number of its tokens."""
        self._library = load()
        self._base = base  # It has to live as long.
        address = self._library.pk_runs_new(width, None if base is None else base.address, at)
        if address is None:
            raise MemoryError("there is no memory for an index of tokens")
        self.address: int = address

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._library.pk_runs_free(self.address)

    def extend(self, tokens: Sequence[int], end: int) -> None:
        """Adds tokens, and indexes all runs that end before token `end`. Raises MemoryError."""
        given = array("i", tokens)
        address, count = given.buffer_info()
        if self._library.pk_runs_extend(self.address, address, count, end):
            raise MemoryError("there is no memory for an index of tokens")
        self.size += count


def guess(
    indexes: Sequence[TokenRuns], tail: Sequence[int], longest: int, most: int, *, votes: bool
) -> list[int]:
    """Returns at most `most` ids that may follow `tail`, which has at least the indexes' width of
    tokens: what most of the longest equal runs are followed by, or, without `votes`, what follows
    the newest one of the first index that has any. `longest`: tokens of a run at most; a shorter
    one bounds how many ids there are. Raises MemoryError."""
    if not indexes or len(tail) < indexes[0].width:
        return []
    known = array("Q", [each.address for each in indexes])
    last, ids = array("i", tail), array("i", bytes(4 * most))
    count = indexes[0]._library.pk_runs_guess(
        known.buffer_info()[0],
        len(known),
        last.buffer_info()[0],
        len(last),
        longest,
        most,
        votes,
        ids.buffer_info()[0],
    )
    if count < 0:
        raise MemoryError("there is no memory to look for drafts")
    return ids[:count].tolist()
