"""What sequences need of each KV group: plain arithmetic over blocks.

A group whose layers see everything before a token needs all blocks of a sequence.  One whose layers
see a window needs the window's; the blocks behind it can be given to others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.kv_layout import ONE_GROUP, KVGroup, blocks_needed
from penstock_engine.kv.cache import KVCache, Match


class KVGroups:
    """The groups of the present worker's model, over blocks of `block_size` tokens."""

    __slots__ = ("_forgetful", "_full", "block_size", "groups")

    def __init__(self, block_size: int, groups: Sequence[KVGroup] = ONE_GROUP) -> None:
        self.block_size = block_size
        self.groups = tuple(groups)
        self._full = [at for at, group in enumerate(self.groups) if not group.forgets]
        self._forgetful = [at for at, group in enumerate(self.groups) if group.forgets]

    def __len__(self) -> int:
        return len(self.groups)

    # ---- what is needed

    def first_needed(self, group: int, blocks: int) -> int:
        """The first block of a group that is needed by tokens behind the first `blocks` ones."""
        return self.groups[group].first_seen(blocks * self.block_size) // self.block_size

    def firsts(self, blocks: int) -> list[int]:
        """first_needed of each group."""
        return [self.first_needed(group, blocks) for group in range(len(self.groups))]

    def needed(self, num_tokens: int, fresh: int = 0) -> int:
        """See blocks_needed."""
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

    # ---- what is there

    def match(self, cache: KVCache, keys: Sequence[bytes]) -> Match:
        """The longest prefix after which a sequence can go on: all of its blocks are in the cache
        in the groups that see everything, and the last ones in the others."""
        if self._full == [0] and len(self.groups) == 1:
            return cache.match(keys)
        blocks = len(keys)
        for group in self._full:
            blocks = cache.match(keys_in(group, keys[:blocks])).blocks
        blocks = self._seen_by_all(cache, keys, blocks)
        spans = (
            keys_in(group, keys[self.first_needed(group, blocks) : blocks])
            for group in range(len(self.groups))
        )
        return Match(blocks, sum(cache.match(span).taken for span in spans))

    def _seen_by_all(self, cache: KVCache, keys: Sequence[bytes], blocks: int) -> int:
        """The most blocks, at most so many, whose last ones each group has as far as it needs."""
        before = -1
        while before != blocks:
            before = blocks
            for group in self._forgetful:
                at = blocks - 1
                while at >= self.first_needed(group, blocks):
                    if not cache.has(key_in(group, keys[at])):
                        # Whoever goes on behind this block, and not too far behind, needs it.
                        blocks = at
                    at -= 1
        return blocks

    def claim(self, cache: KVCache, keys: Sequence[bytes]) -> list[list[int]]:
        """One more owner for each block that is needed to go on behind those of `keys`, by group.
        They were matched, and there is room."""
        spans = [
            keys_in(group, keys[self.first_needed(group, len(keys)) :])
            for group in range(len(self.groups))
        ]
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
