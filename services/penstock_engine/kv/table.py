"""A sequence's block tables: which physical block holds which of its tokens, in each KV group."""

from __future__ import annotations

from itertools import chain

from penstock.protocol.to_worker import NO_BLOCK
from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.checkpoints import Checkpoints
from penstock_engine.kv.retention import KVSession


class BlockTable:
    """Blocks in token order: token t lies in block t // block_size of each group, at row
    t % block_size.  Groups forget leading blocks, each as many as its layers don't see any more.

        group 0:   [ 0 | 1 | 2 | 3 | 4 ]     all
        group 1:     .   .   . | 3 | 4 ]     held[1] are two blocks, first[1] is 3

    Checkpoints, if there are recurrent layers, grow with the tables: there is one after each block
    that ends where one is due.
    """

    __slots__ = ("block_size", "checkpoints", "first", "held")

    def __init__(
        self,
        block_size: int,
        held: list[list[int]] | None = None,
        first: list[int] | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.block_size = block_size
        self.held: list[list[int]] = held or [[]]
        """The blocks of each KV group, without the forgotten ones."""
        self.first: list[int] = first or [0] * len(self.held)
        """The number of forgotten blocks of each KV group."""
        self.checkpoints = checkpoints

    @property
    def length(self) -> int:
        """Blocks of the tokens that the table has room for, forgotten ones included."""
        return self.first[0] + len(self.held[0])

    @property
    def capacity(self) -> int:
        """Tokens that the table has room for."""
        return self.length * self.block_size

    @property
    def num_blocks(self) -> int:
        """Blocks that it holds, of all groups."""
        states = 0 if self.checkpoints is None else self.checkpoints.num_blocks
        return sum(map(len, self.held)) + states

    @property
    def blocks(self) -> list[int]:
        """The blocks that it holds, in token order."""
        states = [] if self.checkpoints is None else self.checkpoints.placed()
        if len(self.held) == 1 and not states:
            return self.held[0]
        placed = [enumerate(held, first) for held, first in zip(self.held, self.first, strict=True)]
        return [block for _, block in sorted(chain(*placed, states), key=lambda entry: entry[0])]

    def entries(self) -> list[int]:
        """The block tables of all KV groups, one after another, as the worker gets them."""
        found: list[int] = []
        for held, first in zip(self.held, self.first, strict=True):
            found += [NO_BLOCK] * first
            found += held
        return found

    def at(self, index: int) -> list[int] | None:
        """Each group's block number `index`; None if one has forgotten it."""
        if index < max(self.first):
            return None
        return [held[index - first] for held, first in zip(self.held, self.first, strict=True)]

    def span(self, group: int, start: int, end: int) -> list[int]:
        """A group's blocks [start, end), none of them forgotten."""
        first = self.first[group]
        return self.held[group][start - first : end - first]

    def missing(self, num_tokens: int) -> int:
        """Blocks to add to each group before `num_tokens` tokens fit."""
        return max(0, blocks_for(num_tokens, self.block_size) - self.length)

    def grow(self, cache: KVCache, num_tokens: int) -> list[int]:
        """Makes room for `num_tokens` tokens, and for the checkpoints after them; returns the new
        blocks of tokens, equally many for each group. Raises OutOfBlocks."""
        each = self.missing(num_tokens)
        states, tokens = self.checkpoints, each * len(self.held)
        growth = 0 if states is None else states.rule.growth(self.length, each)
        new = cache.take(tokens + growth)
        if states is not None:
            states.add(new[tokens:])
            del new[tokens:]
        for group, held in enumerate(self.held):
            held += new[group * each : (group + 1) * each]
        return new

    def new_states(self, new_blocks: list[int]) -> list[int]:
        """The blocks of the checkpoints that it got with these blocks, the latest that it got."""
        if self.checkpoints is None or not new_blocks:
            return []
        return self.checkpoints.behind(self.length - len(new_blocks) // len(self.held))

    def forget(self, cache: KVCache, firsts: list[int]) -> None:
        """Gives back what lies before `firsts`, for each group. It can still be found until the
        blocks are needed."""
        for group, first in enumerate(firsts):
            count = first - self.first[group]
            if count > 0:
                cache.release(self.held[group][:count])
                del self.held[group][:count]
                self.first[group] = first

    def release(self, cache: KVCache, session: KVSession | None = None) -> None:
        """Gives every block back. session: whose they are, if it may come back for them."""
        cache.release(self.blocks, session)
        self.held, self.first = [[] for _ in self.held], [0] * len(self.held)
        self.checkpoints = None


def joined(first: list[int], more: list[int], groups: int) -> list[int]:
    """New blocks of a table that grew twice, as `grow` returns them: group by group."""
    if groups == 1 or not first or not more:
        return first + more
    one, other = len(first) // groups, len(more) // groups
    return [
        block
        for group in range(groups)
        for block in (
            *first[group * one : (group + 1) * one],
            *more[group * other : (group + 1) * other],
        )
    ]


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)
