"""What of a prefix is to be asked for that may be kept elsewhere, and what of that is needed.

In each KV group, and of recurrent layers, other blocks are needed to go on after so many tokens.
Before it is known how many that will be, everything is asked for that could be needed, block of
tokens by block of tokens: the first that isn't there says how far a sequence can get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.groups import KVGroups, key_in


class WantedKV:
    """present: blocks of tokens after which a sequence can go on already.  names: of what is to be
    asked for, in pool and host tier."""

    def __init__(
        self, groups: KVGroups, cache: KVCache, prefix: Sequence[bytes], most: int
    ) -> None:
        """prefix: keys of all blocks of tokens that are wanted.  most: names."""
        self.prefix = prefix
        self._groups, self._cache = groups, cache
        self.present = groups.match(cache, prefix).blocks
        absent = (entry for entry in self._all() if not cache.has(entry[1]))
        asked = list(islice(absent, most + 1))
        self._end = asked[most][0] if len(asked) > most else len(prefix)
        """Blocks of tokens, of which everything was asked for."""
        self._places = [at for at, _ in asked[:most]]
        self.names = [name for _, name in asked[:most]]

    @property
    def num_blocks(self) -> int:
        """Blocks of tokens that might come."""
        return self._end - self.present

    def reached(self, count: int, room: int) -> int:
        """Returns after how many blocks of tokens a sequence could go on if the first `count` names
        were fetched, and at most `room` blocks of the pool taken for them."""
        blocks = self._places[count] if count < len(self.names) else self._end
        blocks = self._with_state(blocks)
        while blocks > self.present and (over := self._taken(blocks) - room) > 0:
            blocks = self._with_state(blocks - max(1, over // len(self._groups)))
        return max(blocks, self.present)

    def needed(self, blocks: int, count: int) -> list[bytes]:
        """Names of what isn't in memory of all that is needed after so many blocks of tokens, out
        of the first `count` names."""
        there = set(self.names[:count])
        spans = [
            (at, name)
            for at, name in self._between(self._firsts(blocks), blocks, checkpoints=blocks)
            if name in there and not self._cache.has(name)
        ]
        return [name for _, name in spans]

    def _all(self) -> Iterator[tuple[int, bytes]]:
        """(block of tokens, name) of whatever is needed after any more blocks than are present."""
        return self._between(self._firsts(self.present + 1), len(self.prefix), checkpoints=None)

    def _firsts(self, blocks: int) -> list[int]:
        """The first block of each group that isn't there and is needed after so many."""
        forgetful = [group.forgets for group in self._groups.paged]
        firsts = self._groups.firsts(blocks)
        return [
            first if forgets else max(first, self.present)
            for first, forgets in zip(firsts, forgetful, strict=True)
        ]

    def _between(
        self, firsts: list[int], end: int, *, checkpoints: int | None
    ) -> Iterator[tuple[int, bytes]]:
        """checkpoints: the only place after which one is wanted; None: after all."""
        states = self._groups.states
        for at in range(min(firsts), end):
            key = self.prefix[at]
            for group, first in enumerate(firsts):
                if at >= first:
                    yield at, key_in(group, key)
            if states is None or at < self.present or (at + 1) % states.every:
                continue
            if checkpoints in (None, at + 1):
                for name in states.names(key):
                    yield at, name

    def _with_state(self, blocks: int) -> int:
        states = self._groups.states
        return blocks if states is None else states.last(max(blocks, 0)) * states.every

    def _taken(self, blocks: int) -> int:
        """Blocks of the pool for what is needed after so many, if nothing of it is there."""
        states = self._groups.states
        pieces = 0 if states is None else states.pieces
        return sum(max(0, blocks - first) for first in self._firsts(blocks)) + pieces
