"""What a sequence that is about to start needn't compute, because somebody has, or is at it."""

from __future__ import annotations

from dataclasses import dataclass

from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.groups import KVGroups, keys_in
from penstock_engine.kv.table import BlockTable
from penstock_engine.request.request import Sequence


@dataclass(frozen=True)
class Start:
    """How a sequence may start.

    blocks: of its leading ones that are in the cache.  partial: each KV group's block of another
    sequence whose first rows are the next ones, to be copied; None for none.  computed: tokens that
    are then there.  needed: free blocks that it takes to start, with room for one token more than
    it has.
    """

    blocks: int
    partial: list[int] | None
    computed: int
    needed: int


class PrefixReuse:
    """Finds shared prefixes: in the cache, and in the making.

    A prompt that many requests bring at once is computed by the first of them: the others wait
    until the blocks that they have in common are there.  The sequences of one request share all of
    their prompt; the block that it ends in is copied (copy-on-write), as each writes to its own.
    """

    def __init__(self, cache: KVCache, groups: KVGroups, budget: int) -> None:
        """budget: tokens of a step."""
        self._cache = cache
        self._groups = groups
        self._budget = budget
        self._makers: dict[bytes, Sequence] = {}
        """Who is computing the block of a key."""

    def find(self, sequence: Sequence) -> Start | None:
        """How it may start at best; None: it should wait for what others are computing."""
        size = self._cache.block_size
        # What is computed in any case: those logits are what the sequence is here for.
        wanted = sequence.first_wanted
        keys = sequence.block_keys(0, wanted // size, size)
        match = self._groups.match(self._cache, keys)
        if match.blocks < len(keys) and keys[match.blocks] in self._makers:
            return None
        partial, computed = None, match.blocks * size
        if match.blocks == len(keys) and wanted % size and not sequence.emitted:
            sibling = self._sibling(sequence)
            if sibling is not None and sibling.progress.computed < wanted:
                return None
            if sibling is not None and sibling.table is not None:
                # Not where the sibling is so far ahead that a window has passed.
                partial = sibling.table.at(match.blocks)
                computed = computed if partial is None else wanted
        needed = self._needed(sequence.num_tokens, computed) - self._held(match.blocks)
        return Start(match.blocks, partial, computed, needed + match.taken)

    def _needed(self, num_tokens: int, computed: int) -> int:
        """Blocks that it takes to compute what is not computed yet, and one token more: enough for
        whole steps, but not more than there are, if it can do with less."""
        groups = self._groups
        fresh = min(num_tokens - computed, self._budget)
        wanted = min(groups.needed(num_tokens + 1, fresh), self._cache.pool.num_blocks)
        return max(wanted, groups.needed(num_tokens + 1))

    def _held(self, blocks: int) -> int:
        """Of these, those that it has when so many blocks of its tokens were found."""
        return sum(blocks - first for first in self._groups.firsts(blocks))

    def table(self, sequence: Sequence, start: Start) -> BlockTable:
        """The block table that a sequence starts with. There must be `start.needed` free blocks."""
        cache = self._cache
        sequence.num_keyed = sequence.num_tokens // cache.block_size
        keys = sequence.block_keys(0, sequence.num_keyed, cache.block_size)
        held = self._groups.claim(cache, keys[: start.blocks])
        for blocks, source in zip(held, start.partial or (), strict=False):
            blocks.append(cache.copy(source))
        for key in keys[start.blocks :]:
            self._makers.setdefault(key, sequence)
        sequence.num_published = start.blocks
        return BlockTable(cache.block_size, held, self._groups.firsts(start.blocks))

    def computed(self, sequence: Sequence) -> None:
        """More of its tokens have settled KV: full blocks can be found from now on, and those that
        no later token sees, nor one that goes on behind the last full block, are given back."""
        first, last = sequence.num_published, sequence.progress.computed // self._cache.block_size
        if first == last or sequence.table is None:
            return
        keys = sequence.block_keys(first, last, self._cache.block_size)
        table = sequence.table
        for group in range(len(self._groups)):
            self._cache.publish(table.span(group, first, last), keys_in(group, keys))
        sequence.num_published = last
        table.forget(self._cache, self._groups.firsts(last))
        self._unmake(sequence, keys)

    def left(self, sequence: Sequence) -> None:
        """It runs no more: it won't compute what it had not computed yet."""
        first, last = sequence.num_published, sequence.num_keyed
        self._unmake(sequence, sequence.block_keys(first, last, self._cache.block_size))

    def _unmake(self, sequence: Sequence, keys: list[bytes]) -> None:
        for key in keys:
            if self._makers.get(key) is sequence:
                del self._makers[key]

    @staticmethod
    def _sibling(sequence: Sequence) -> Sequence | None:
        """A running sequence of the same request: the one that has computed most."""
        running = [other for other in sequence.request.sequences.values() if other.slot is not None]
        running = [other for other in running if not other.finished]
        return max(running, key=lambda other: other.progress.computed, default=None)
