"""What sequences need of each KV group: plain arithmetic over blocks.

A group whose layers see everything before a token needs all blocks of a sequence.  One whose layers
see a window needs the window's; the blocks before it can be given to others.  Recurrent layers need
one checkpoint, after which a sequence goes on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.model.kv_layout import ONE_GROUP, KVGroup, blocks_needed, paged
from penstock_engine.kv.cache import KVCache, Match
from penstock_engine.kv.checkpoints import CheckpointRule, Checkpoints
from penstock_engine.kv.table import BlockTable


class KVGroups:
    """The groups of the present worker's model, over blocks of `block_size` tokens."""

    __slots__ = ("_forgetful", "_full", "block_size", "groups", "paged", "states")

    def __init__(self, block_size: int, groups: Sequence[KVGroup] = ONE_GROUP) -> None:
        self.block_size = block_size
        self.groups = tuple(groups)
        self.paged = paged(self.groups)
        """Groups with tables of blocks of tokens."""
        self.states: CheckpointRule | None = None
        """Rule of the group of recurrent layers, which is the last one; None: there is none."""
        if len(self.paged) < len(self.groups):
            self.states = CheckpointRule(self.groups[-1], len(self.paged), block_size)
        self._full = [at for at, group in enumerate(self.paged) if not group.forgets]
        self._forgetful = [at for at, group in enumerate(self.paged) if group.forgets]

    def __len__(self) -> int:
        return len(self.groups)

    def first_needed(self, group: int, blocks: int) -> int:
        """The first block of a group that is needed by tokens after the first `blocks` ones."""
        return self.paged[group].first_seen(blocks * self.block_size) // self.block_size

    def firsts(self, blocks: int) -> list[int]:
        """first_needed of each group."""
        if not self._forgetful:
            return [0] * len(self.paged)
        return [self.first_needed(group, blocks) for group in range(len(self.paged))]

    def held(self, blocks: int) -> int:
        """Blocks that a sequence has at first for which so many blocks of its tokens were found."""
        states = self.states.pieces if self.states is not None and blocks else 0
        return sum(blocks - first for first in self.firsts(blocks)) + states

    def held_behind_tail(self, tokens: int) -> int:
        """Blocks, without what is copied, that a sequence has at first which starts with a tail
        after so many tokens."""
        blocks = tokens // self.block_size
        states = self.states
        if states is None or not states.last(blocks):
            return sum(blocks - first for first in self.firsts(blocks))
        return self.held(blocks)

    def room(self, table: BlockTable, free: int) -> int:
        """Tokens by which a table can grow with so many free blocks."""
        each = free // len(self.paged)
        states = self.states
        if states is not None:
            length, groups = table.length, len(self.paged)
            each = bisect_right(
                range(each + 1), free, key=lambda more: more * groups + states.growth(length, more)
            )
            each -= 1
        return each * self.block_size

    def headroom(self, tokens: int) -> int:
        """Blocks that running sequences take at about, for so many more tokens in all."""
        blocks = len(self.paged) * -(-tokens // self.block_size)
        if self.states is None:
            return blocks
        return blocks + self.states.pieces * self.states.last(tokens // self.block_size)

    def needed(self, num_tokens: int, fresh: int = 0) -> int:
        """Blocks that a sequence of so many tokens takes: see blocks_needed."""
        return blocks_needed(self.groups, num_tokens, self.block_size, fresh)

    def longest(self, num_blocks: int, most: int) -> int:
        """Tokens of the longest sequence that so many blocks hold. most: of any sequence, where
        nothing else limits it."""
        size, low, high = self.block_size, 0, num_blocks
        if not self._full and self.needed((num_blocks + 1) * size) <= num_blocks:
            return most
        while low < high:
            middle = (low + high + 1) // 2
            if self.needed(middle * size) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low * size

    def match(self, cache: KVCache, keys: Sequence[bytes]) -> Match:
        """The longest prefix after which a sequence can go on: all of its blocks are in the cache
        in the groups that see everything, and the last ones in the others."""
        if self._full == [0] and len(self.groups) == 1:
            return cache.match(keys)
        blocks = self._in_full_groups(cache, keys)
        before = -1
        while before != blocks:
            before = blocks
            blocks = self._with_state(cache, keys, self._seen_by_all(cache, keys, blocks))
        spans = self._spans(keys[:blocks])
        return Match(blocks, sum(cache.match(span).taken for span in spans))

    def match_tail(self, cache: KVCache, keys: Sequence[bytes], tail: TailNames) -> int | None:
        """Returns how many free device blocks it takes to continue after a tail, in addition to
        those that are written; None: something is missing. keys: of all full blocks before it."""
        if not all(cache.has(name) for name in tail.all()):
            return None
        found = self._in_full_groups(cache, keys)
        if found < len(keys) or self._seen_by_all(cache, keys, found) < found:
            return None
        spans = [*self._paged_spans(keys), list(tail.states), list(tail.partial)]
        return sum(cache.match(span).taken for span in spans)

    def _in_full_groups(self, cache: KVCache, keys: Sequence[bytes]) -> int:
        """How many blocks are in the cache in the groups that see everything."""
        blocks = len(keys)
        for group in self._full:
            blocks = cache.match(keys_in(group, keys[:blocks])).blocks
        return blocks

    def behind(self, blocks: int) -> int:
        """Returns the block that must be computed after so many that were found, for more to be
        found: the next one, or the one before the next checkpoint."""
        if self.states is None:
            return blocks
        return (self.states.last(blocks) + 1) * self.states.every - 1

    def _with_state(self, cache: KVCache, keys: Sequence[bytes], blocks: int) -> int:
        """The most blocks, at most so many, after which there is a checkpoint."""
        if self.states is None:
            return blocks
        for number in range(self.states.last(blocks), 0, -1):
            found = number * self.states.every
            if all(cache.has(name) for name in self.states.names(keys[found - 1])):
                return found
        return 0

    def _spans(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        """What a sequence needs to go on after the blocks of `keys`: of each group, then of the
        checkpoint."""
        spans = self._paged_spans(keys)
        if self.states is not None:
            spans.append(list(self.states.names(keys[-1])) if keys else [])
        return spans

    def _paged_spans(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        return [
            keys_in(group, keys[self.first_needed(group, len(keys)) :])
            for group in range(len(self.paged))
        ]

    def _seen_by_all(self, cache: KVCache, keys: Sequence[bytes], blocks: int) -> int:
        """The most blocks, at most so many, whose last ones each group has as far as it needs."""
        before = -1
        while before != blocks:
            before = blocks
            for group in self._forgetful:
                at = blocks - 1
                while at >= self.first_needed(group, blocks):
                    if not cache.has(key_in(group, keys[at])):
                        # A sequence that goes on soon after this block needs it.
                        blocks = at
                    at -= 1
        return blocks

    def claim(self, cache: KVCache, keys: Sequence[bytes]) -> BlockTable:
        """One more owner for each block that is needed to go on after those of `keys`: the table
        to go on with. They were matched, and there is room."""
        found = _claim(cache, self._spans(keys))
        checkpoints = None
        if self.states is not None:
            checkpoints = Checkpoints(self.states, len(keys) * self.block_size, found.pop())
        return BlockTable(self.block_size, found, self.firsts(len(keys)), checkpoints)

    def claim_tail(
        self, cache: KVCache, keys: Sequence[bytes], tail: TailNames, tokens: int
    ) -> BlockTable:
        """One more owner for each block that is needed to go on after a tail, which lies after so
        many tokens: the table to go on with. The block in which the tail ends is copied
        (copy-on-write), in each group."""
        if self.states is None:
            raise ValueError("without recurrent layers there are no tails")
        found = _claim(cache, [*self._paged_spans(keys), list(tail.states), list(tail.partial)])
        named, states = found.pop(), found.pop()
        for blocks, source in zip(found, named, strict=False):
            blocks.append(cache.copy(source))
        cache.release(named)
        checkpoints = Checkpoints(self.states, tokens, states)
        if tokens % self.block_size:
            # There may be one to come after the block that was copied.
            checkpoints.add(cache.take(self.states.growth(len(keys), 1)))
        return BlockTable(self.block_size, found, self.firsts(len(keys)), checkpoints)


@dataclass(frozen=True)
class TailNames:
    """Names of what a tail consists of.

    states: of its checkpoint's pieces.  partial: of each KV group's block that it lies in; empty if
    it lies between two blocks.
    """

    states: tuple[bytes, ...]
    partial: tuple[bytes, ...] = ()

    def all(self) -> tuple[bytes, ...]:
        return self.states + self.partial


def _claim(cache: KVCache, spans: list[list[bytes]]) -> list[list[int]]:
    """The blocks of each span."""
    held = cache.claim([key for span in spans for key in span])
    found, at = [], 0
    for span in spans:
        found.append(held[at : at + len(span)])
        at += len(span)
    return found


def key_in(group: int, key: bytes) -> bytes:
    """The name of what a group keeps of a block's tokens. In the first one it is the tokens'."""
    return key + bytes([group]) if group else key


def keys_in(group: int, keys: Iterable[bytes]) -> list[bytes]:
    """key_in of each."""
    return [key_in(group, key) for key in keys]
