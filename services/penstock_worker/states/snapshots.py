"""Where states lie that a step goes back to if what was drafted is wrong.

They are copied as checkpoints are, to KV blocks that the worker has in addition to those that the
engine core knows of. So whatever writes checkpoints writes them, too.
"""

from __future__ import annotations

MOST_BYTES = 256 << 20
"""Bytes of all snapshots, unless a single sequence's drafts need more."""


def num_snapshots(drafts: int, slots: int, state_bytes: int) -> int:
    """Returns how many there are. `drafts`: most of a sequence in a step; `state_bytes`: of a
    sequence."""
    return max(drafts, min(drafts * slots, MOST_BYTES // max(state_bytes, 1)))


class Snapshots:
    """The snapshots of all sequences, each of which has some during a step."""

    def __init__(self, count: int, pieces: int) -> None:
        """`pieces`: blocks of each."""
        self._count = count
        self._pieces = pieces
        self._first = 0
        self._free: list[list[int]] = []

    @property
    def blocks(self) -> int:
        """Blocks of all of them."""
        return self._count * self._pieces

    def place(self, first: int) -> None:
        """Sets the first of the blocks that snapshots are in."""
        self._first = first
        self.clear()

    def clear(self) -> None:
        """Takes all of them back."""
        firsts = range(self._first, self._first + self.blocks, self._pieces)
        self._free = [list(range(first, first + self._pieces)) for first in firsts]

    def take(self) -> list[int] | None:
        """Returns the blocks of one; None: all are in use. Threads may call it at once."""
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give(self, blocks: list[int]) -> None:
        """Takes one back."""
        self._free.append(blocks)
