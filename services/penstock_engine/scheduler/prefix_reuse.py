"""What a sequence that is about to start needn't compute, because somebody has, or is at it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock_engine.kv.cache import KVCache, Match
from penstock_engine.kv.groups import KVGroups, keys_in
from penstock_engine.kv.table import BlockTable
from penstock_engine.request.request import REUSED, Sequence
from penstock_engine.scheduler.tails import Tails, TailStart


@dataclass(frozen=True)
class Start:
    """How a sequence may start.

    blocks: of its leading ones that are in the cache.  partial: each KV group's block of another
    sequence whose first rows are the next ones, to be copied; None for none.  computed: tokens that
    are then there.  needed: free blocks that it takes to start, with room for one token more than
    it has.  tail: the checkpoint that it starts with, if that is one where sequences part.  writes:
    after how many tokens it is to write such a one; 0 for none.
    """

    blocks: int
    partial: list[int] | None
    computed: int
    needed: int
    tail: TailStart | None = None
    writes: int = 0


class PrefixReuse:
    """Finds shared prefixes: in the cache, and in the making.

    A prompt that many requests bring at once is computed by the first of them: the others wait
    until the blocks that they have in common are there.  The sequences of one request share all of
    their prompt; the block that it ends in is copied (copy-on-write), as each writes to its own.
    """

    def __init__(
        self, cache: KVCache, groups: KVGroups, budget: int, *, whole_spans: bool = False
    ) -> None:
        """budget: tokens of a step.  whole_spans: no sequence starts within a span of media."""
        self._cache = cache
        self._groups = groups
        self._budget = budget
        self._whole_spans = whole_spans
        self._makers: dict[bytes, Sequence] = {}
        """The sequence that is computing the block, or the tail, of each key."""
        states = groups.states
        self._tails = None if states is None else Tails(cache, groups, states)

    def find(self, sequence: Sequence) -> Start | None:
        """How it may start at best; None: it should wait for what others are computing."""
        size = self._cache.block_size
        # What is computed in any case: those logits are what the sequence is here for.
        wanted = sequence.first_wanted
        keys = sequence.block_keys(0, wanted // size, size)
        tails = self._tails
        if tails is not None and self._uncut(sequence, wanted) == wanted:
            tail = tails.find(sequence, wanted)
            if tail is not None and self._has_spare(sequence, wanted):
                return self._behind_tail(sequence, tail)
            if tail is None and self._is_in_the_making(sequence, wanted):
                return None
        match = self._match(sequence, keys)
        next_block = self._groups.behind(match.blocks)
        if next_block < len(keys) and keys[next_block] in self._makers:
            return None
        partial, computed = None, match.blocks * size
        # A state within a block isn't kept: there is nothing to go on with.
        whole = match.blocks == len(keys) and self._groups.states is None
        if whole and wanted % size and not sequence.emitted:
            sibling = self._sibling(sequence)
            if sibling is not None and sibling.progress.computed < wanted:
                return None
            if sibling is not None and sibling.table is not None:
                # Not where the sibling is so far ahead that a window has passed.
                partial = sibling.table.at(match.blocks)
                computed = computed if partial is None else wanted
            if computed != self._uncut(sequence, computed):
                partial, computed = None, match.blocks * size
        needed = self._needed(sequence.num_tokens, computed) - self._groups.held(match.blocks)
        start = Start(match.blocks, partial, computed, needed + match.taken)
        return start if tails is None else self._writing(sequence, start)

    def _behind_tail(self, sequence: Sequence, tail: TailStart) -> Start:
        needed = self._needed(sequence.num_tokens, tail.tokens)
        needed += tail.taken - self._groups.held_behind_tail(tail.tokens)
        blocks = tail.tokens // self._cache.block_size
        return self._writing(sequence, Start(blocks, None, tail.tokens, needed, tail))

    def _writing(self, sequence: Sequence, start: Start) -> Start:
        """The start, which also writes a tail if it should, and if there can be room."""
        tails = self._tails
        at = 0 if tails is None else tails.place(sequence)
        spare = at > start.computed and self._has_spare(sequence, start.computed)
        if tails is None or not spare:
            return start
        return replace(start, needed=start.needed + tails.num_blocks(sequence, at), writes=at)

    def _has_spare(self, sequence: Sequence, computed: int) -> bool:
        """Whether the pool has blocks for two tails in addition to all that the sequence may need
        until its first token after one is settled."""
        states = self._groups.states
        spare = 0 if states is None else 2 * (states.pieces + len(self._groups.paged))
        ahead = sequence.num_tokens + self._cache.block_size
        return self._needed(ahead, computed) + spare <= self._cache.pool.num_blocks

    def _is_in_the_making(self, sequence: Sequence, tokens: int) -> bool:
        """Whether a sequence of the same request is about to write the tail after them."""
        if len(sequence.request.sequences) < 2:
            return False
        maker = self._makers.get(sequence.key_at(tokens, self._cache.block_size))
        return maker is not None and maker.request is sequence.request

    def _match(self, sequence: Sequence, keys: list[bytes]) -> Match:
        """What of its blocks is there, as far as it can go on after them."""
        size = self._cache.block_size
        while True:
            match = self._groups.match(self._cache, keys)
            blocks = self._uncut(sequence, match.blocks * size) // size
            if blocks == match.blocks:
                return match
            keys = keys[:blocks]

    def _uncut(self, sequence: Sequence, computed: int) -> int:
        """Tokens, at most so many, so that it doesn't start within a span that is computed
        whole."""
        media = sequence.request.media
        return computed if media is None or not self._whole_spans else media.whole_before(computed)

    def _needed(self, num_tokens: int, computed: int) -> int:
        """Blocks that it takes to compute what is not computed yet, and one token more: enough for
        whole steps, but not more than there are, if it can do with less."""
        groups = self._groups
        fresh = min(num_tokens - computed, self._budget)
        wanted = min(groups.needed(num_tokens + 1, fresh), self._cache.pool.num_blocks)
        return max(wanted, groups.needed(num_tokens + 1))

    def table(self, sequence: Sequence, start: Start) -> BlockTable:
        """The block table that a sequence starts with. There must be `start.needed` free blocks."""
        cache = self._cache
        sequence.num_keyed = sequence.num_tokens // cache.block_size
        keys = sequence.block_keys(0, sequence.num_keyed, cache.block_size)
        table = self._claimed(keys[: start.blocks], start)
        if sequence.trail is not None and start.computed:
            sequence.trail.reused |= REUSED | cache.origin_of(table.blocks)
        for key in keys[start.blocks :]:
            self._makers.setdefault(key, sequence)
        sequence.num_published = start.blocks
        if self._tails is not None and start.writes and table.checkpoints is not None:
            table.checkpoints.tail = self._tails.to_write(sequence, start.writes)
            self._makers.setdefault(table.checkpoints.tail.key, sequence)
        return table

    def _claimed(self, keys: list[bytes], start: Start) -> BlockTable:
        cache, tail = self._cache, start.tail
        if tail is not None:
            return self._groups.claim_tail(cache, keys, tail.names, tail.tokens)
        table = self._groups.claim(cache, keys)
        for blocks, source in zip(table.held, start.partial or (), strict=False):
            blocks.append(cache.copy(source))
        return table

    def computed(self, sequence: Sequence) -> None:
        """More of its tokens have settled KV: full blocks can be found from now on, and those that
        no later token sees, nor one that goes on after the last full block, are given back."""
        tail = None if self._tails is None else self._tails.computed(sequence)
        if tail is not None:
            self._unmake(sequence, [tail.key])
        first, last = sequence.num_published, sequence.progress.computed // self._cache.block_size
        if first == last or sequence.table is None:
            return
        keys = sequence.block_keys(first, last, self._cache.block_size)
        table, lasting = sequence.table, not sequence.request.internal
        for group in range(len(self._groups.paged)):
            names = keys_in(group, keys)
            self._cache.publish(table.span(group, first, last), names, lasting=lasting)
        if table.checkpoints is not None:
            table.checkpoints.publish(self._cache, first, last, keys, lasting=lasting)
        sequence.num_published = last
        table.forget(self._cache, self._groups.firsts(last))
        self._unmake(sequence, keys)

    def left(self, sequence: Sequence) -> None:
        """Notes that a sequence has stopped running: it won't compute the blocks that it had not
        computed yet."""
        first, last = sequence.num_published, sequence.num_keyed
        self._unmake(sequence, sequence.block_keys(first, last, self._cache.block_size))
        checkpoints = None if sequence.table is None else sequence.table.checkpoints
        if checkpoints is not None and checkpoints.tail is not None:
            self._unmake(sequence, [checkpoints.tail.key])

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
