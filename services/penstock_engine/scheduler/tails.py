"""Checkpoints of recurrent states where sequences part: where a prompt ends of which a request has
several sequences, and where a beam ends.

Other models copy the block of keys and values in which such a place lies from a sequence that runs;
a state there is gone by the time that others ask for it, unless the worker was asked before to copy
it. So it is given names, as the blocks are that lie before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock_engine.kv.cache import KVCache
from penstock_engine.kv.checkpoints import CheckpointRule, Tail
from penstock_engine.kv.groups import KVGroups, TailNames, key_in
from penstock_engine.request.request import Sequence


@dataclass(frozen=True)
class TailStart:
    """How a sequence may start after a tail.

    taken: free blocks that it costs to have it, and the blocks before it.
    """

    tokens: int
    names: TailNames
    taken: int


class Tails:
    """The tails of a model with recurrent layers."""

    def __init__(self, cache: KVCache, groups: KVGroups, rule: CheckpointRule) -> None:
        self._cache = cache
        self._groups = groups
        self._rule = rule

    def place(self, sequence: Sequence) -> int:
        """Returns the number of a starting sequence's tokens after which it is to write a tail; 0
        for none."""
        request, at = sequence.request, 0
        if request.beams:
            at = sequence.num_tokens
        elif len(request.sequences) > 1 and not sequence.emitted:
            at = len(request.prompt_token_ids) - 1
        return 0 if at % (self._groups.block_size * self._rule.every) == 0 else at

    def num_blocks(self, sequence: Sequence, at: int) -> int:
        """Blocks for the one after `at` tokens."""
        return self._rule.pieces + self._num_partial(sequence, at)

    def _num_partial(self, sequence: Sequence, at: int) -> int:
        copied = at % self._groups.block_size and not sequence.request.beams
        return len(self._groups.paged) if copied else 0

    def find(self, sequence: Sequence, at: int) -> TailStart | None:
        """The tail after its first `at` tokens, if it is there."""
        if not at:
            return None
        size = self._groups.block_size
        names = self._names(sequence.key_at(at, size), partial=bool(at % size))
        keys = sequence.block_keys(0, at // size, size)
        taken = self._groups.match_tail(self._cache, keys, names)
        return None if taken is None else TailStart(at, names, taken)

    def _names(self, key: bytes, *, partial: bool) -> TailNames:
        groups = range(len(self._groups.paged)) if partial else ()
        return TailNames(
            tuple(self._rule.names(key)), tuple(key_in(group, key) for group in groups)
        )

    def to_write(self, sequence: Sequence, at: int) -> Tail:
        """What a sequence that starts writes after `at` tokens. There is room."""
        key = sequence.key_at(at, self._groups.block_size)
        blocks = self._cache.take(self.num_blocks(sequence, at))
        pieces = self._rule.pieces
        return Tail(at, key, blocks[:pieces], blocks[pieces:])

    def computed(self, sequence: Sequence) -> Tail | None:
        """More of its tokens have settled states. Returns the tail that can be found from now
        on."""
        table = sequence.table
        if table is None or table.checkpoints is None:
            return None
        table.checkpoints.settle(self._cache)
        tail = table.checkpoints.tail
        if tail is None or sequence.progress.computed < tail.tokens:
            return None
        table.checkpoints.tail = None
        at, rest = divmod(tail.tokens, table.block_size)
        own = (table.at(at) if rest else None) or []
        for source, target in zip(own, tail.partial, strict=False):
            self._cache.copy_to(source, target)
        names = self._names(tail.key, partial=bool(own))
        named = (tail.partial or own) if own else []
        self._cache.publish(tail.blocks + named, list(names.all()), lasting=False)
        self._cache.release(tail.blocks + tail.partial)
        return tail
