"""The pool of KV blocks: reference counts and a free list in least-recently-used order."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from itertools import compress, repeat

_CLASSES = bytes([0, 1]) + bytes([2]) * 254
_MANY = bytes([0]) + bytes([2]) * 255

MAX_BLOCKS = 2**24
"""Most blocks in one pool; keeps a worker's mistaken figure from filling memory."""


def bytes_or(one: bytes, other: bytes | bytearray) -> bytes:
    """Byte by byte, of two of one length; without a loop in Python."""
    both = int.from_bytes(one, "little") | int.from_bytes(other, "little")
    return both.to_bytes(len(one), "little")


class OutOfBlocks(Exception):
    """More blocks were asked for than are free. The caller checks num_free first."""


class BrokenState(Exception):
    """The books don't balance: a block was lost, freed twice, or is held without an owner."""


class BlockPool:
    """Blocks 0 .. num_blocks-1, each free or held by one or more tables.

    Free blocks form a ring of links in flat arrays, oldest first, entered through an extra entry
    at index num_blocks.  Taking, giving back and reviving a block touch a fixed number of entries
    whatever the pool's size; a block costs 13 bytes.

        ring:  [num_blocks] -> oldest -> ... -> newest -> [num_blocks]

    Blocks are taken at the oldest end.  One whose contents may be asked for again is given back at
    the newest end, so that it keeps them for as long as possible (`share` revives it); any other at
    the oldest.  Free blocks that are reserved form a second ring, entered at index num_blocks + 1:
    they are free as all others, and taken when there are no others.
    """

    __slots__ = ("_next", "_previous", "_references", "_reserved", "num_blocks", "num_free")

    def __init__(self, num_blocks: int) -> None:
        if not 1 <= num_blocks <= MAX_BLOCKS:
            raise ValueError(f"a pool has 1 to {MAX_BLOCKS} blocks, not {num_blocks}")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._references = array("i", bytes(4 * num_blocks))
        self._reserved = bytearray(num_blocks)
        self._next = array("i", range(1, num_blocks + 1))
        self._next.extend((0, num_blocks + 1))
        self._previous = array("i", [num_blocks])
        self._previous.extend(range(num_blocks))
        self._previous.append(num_blocks + 1)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def take(self, count: int) -> list[int]:
        """`count` blocks for one owner, the least recently used first. Raises OutOfBlocks."""
        if count > self.num_free:
            raise OutOfBlocks(f"{count} KV blocks requested; {self.num_free} are free")
        taken = self._take_from(self.num_blocks, count)
        if len(taken) < count:
            reserved = self._take_from(self.num_blocks + 1, count - len(taken))
            for block in reserved:
                self._reserved[block] = 0
            taken += reserved
        self.num_free -= count
        return taken

    def _take_from(self, head: int, most: int) -> list[int]:
        """The oldest of a ring, at most so many."""
        following, taken = self._next, []
        block = following[head]
        for _ in range(most):
            if block == head:
                break
            self._references[block] = 1
            taken.append(block)
            block = following[block]
        following[head] = block
        self._previous[block] = head
        return taken

    def share(self, block: int) -> None:
        """Adds an owner to a block. A free block is taken from the free list, with the contents
        that it still has."""
        if self._references[block] == 0:
            self._unlink(block)
            self.num_free -= 1
        self._references[block] += 1

    def reserve(self, block: int) -> None:
        """Reserves a block: from now on it is taken only when no other is free, the least recently
        freed first."""
        self._rank(block, reserved=1)

    def unreserve(self, block: int) -> None:
        """Makes a reserved block an ordinary one again. A free one goes to the newest end of the
        free list."""
        self._rank(block, reserved=0)

    def _rank(self, block: int, reserved: int) -> None:
        if self._reserved[block] == reserved:
            return
        self._reserved[block] = reserved
        if self._references[block] == 0:
            self._unlink(block)
            self._link(block, self._previous[self.num_blocks + reserved])

    def reserved(self) -> set[int]:
        """Returns the blocks that are taken only when no other is free."""
        return set(compress(range(self.num_blocks), self._reserved))

    def num_owners(self, block: int) -> int:
        return self._references[block]

    def owner_classes(self) -> bytes:
        """Returns for each block 0 (free), 1 (one owner) or 2 (more), by a few passes over whole
        arrays: some ms for a million blocks."""
        raw, width = self._references.tobytes(), self._references.itemsize
        little = sys.byteorder == "little"
        classes = raw[0 if little else width - 1 :: width].translate(_CLASSES)
        # Never beyond two bytes: a block has at most as many owners as there are slots.
        high = raw[1 if little else width - 2 :: width]
        if high.count(0) == self.num_blocks:
            return classes
        return bytes_or(classes, high.translate(_MANY)).translate(_CLASSES)

    def give_back(self, blocks: Sequence[int], kept: Container[int] = ()) -> int:
        """An owner's leave. `blocks` is in token order: the tail is freed, and reused, first.

        kept: blocks whose contents may be asked for again; freed ones of them are reused last, the
        others first.  Returns how many of them were freed.
        """
        references = self._references
        freed_of_kept = 0
        for block in reversed(blocks):
            left = references[block] - 1
            if left < 0:
                raise BrokenState(f"KV block {block} was freed twice")
            references[block] = left
            if left == 0:
                before = self.num_blocks
                if block in kept:
                    freed_of_kept += 1
                    before = self._previous[before + self._reserved[block]]
                self._link(block, before)
                self.num_free += 1
        return freed_of_kept

    def _unlink(self, block: int) -> None:
        """Takes a free block out of its ring."""
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before

    def _link(self, block: int, before: int) -> None:
        """Puts a free block into a ring, after the entry `before`."""
        after = self._next[before]
        self._next[before] = block
        self._previous[block] = before
        self._next[block] = after
        self._previous[after] = block

    def balances(self, num_held: int) -> bool:
        """A cheap audit: as many free blocks as unreferenced ones, and `num_held` references."""
        return self._references.count(0) == self.num_free and sum(self._references) == num_held

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Proves the books: free + used = total, and each count equals the tables' holdings.

        tables: the block lists of all owners.  Raises BrokenState.  Linear in the pool's size.
        """
        held: Counter[int] = Counter()
        for table in tables:
            held.update(table)
        free = self._walk_free()
        if len(free) + len(held) != self.num_blocks:
            raise BrokenState(
                f"{len(free)} KV blocks are free and {len(held)} are held, of {self.num_blocks}"
            )
        counted = list(map(held.get, range(self.num_blocks), repeat(0)))
        for block, references in enumerate(self._references):
            if references != counted[block]:
                raise BrokenState(
                    f"KV block {block} has {references} references; "
                    f"tables hold it {counted[block]} times"
                )

    def _walk_free(self) -> list[int]:
        free = self._walk(self.num_blocks) + self._walk(self.num_blocks + 1)
        if len(free) != self.num_free:
            raise BrokenState(f"{len(free)} KV blocks are listed as free, {self.num_free} counted")
        return free

    def _walk(self, head: int) -> list[int]:
        """The blocks of a ring."""
        free: list[int] = []
        reserved = head - self.num_blocks
        at, last = self._next[head], head
        while at != head:
            linked = at < self.num_blocks and self._previous[at] == last
            if not linked or self._references[at] or len(free) >= self.num_blocks:
                raise BrokenState(f"the free list is broken at KV block {at}")
            if self._reserved[at] != reserved:
                raise BrokenState(f"KV block {at} is in the wrong free list")
            free.append(at)
            last, at = at, self._next[at]
        if self._previous[head] != last:
            raise BrokenState(f"the free list is broken at its end, KV block {last}")
        return free
