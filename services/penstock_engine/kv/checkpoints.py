"""Checkpoints of recurrent states: copies of them in blocks of the pool.

Recurrent layers have a state for each sequence instead of keys and values of its tokens.  After
each multiple of so many tokens the worker copies it into blocks of the pool, which have keys as all
blocks have: so a prefix is found, a preempted sequence comes back, and blocks go to the host tier
in the same ways.  A sequence holds the newest that is published, and those that are being written.

One more may lie where others go on that share all tokens up to there: the tail.  It is after any
number of tokens, is published and given back as soon as it is written, and found by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.model.kv_layout import KVGroup
from penstock_engine.kv.cache import KVCache

_PIECE_BYTES = 3
"""Bytes of a piece's number in its name: as many as a pool's blocks need."""


class CheckpointRule:
    """Where checkpoints lie, and what their blocks are called.

    every: blocks of tokens between two of them.  pieces: blocks of the pool that each takes.
    """

    __slots__ = ("_group", "block_size", "every", "pieces")

    def __init__(self, group: KVGroup, number: int, block_size: int) -> None:
        """group: of the recurrent layers, the model's last; number: its place."""
        if group.every is None or group.every % block_size or group.blocks < 1:
            raise ValueError(f"checkpoints can't be made as {group} says")
        self.every = group.every // block_size
        self.pieces = group.blocks
        self.block_size = block_size
        self._group = bytes([number])

    def names(self, key: bytes) -> Iterator[bytes]:
        """Names of the pieces of the checkpoint after the block with that key."""
        for piece in range(self.pieces):
            yield key + self._group + piece.to_bytes(_PIECE_BYTES, "big")

    def last(self, blocks: int) -> int:
        """The newest checkpoint within so many blocks of tokens; 0: there is none."""
        return blocks // self.every

    def growth(self, length: int, more: int) -> int:
        """Blocks for the checkpoints that a table of `length` blocks gets with `more` ones."""
        return self.pieces * (self.last(length + more) - self.last(length))


@dataclass(frozen=True)
class Tail:
    """A checkpoint after any number of tokens."""

    tokens: int
    key: bytes
    """Key of all these tokens."""
    blocks: list[int]
    partial: list[int]
    """Blocks for a copy of each KV group's block that it lies in; empty if there is none, or if the
    sequence ends there, so that its own blocks can be found."""


class Checkpoints:
    """Checkpoints that a sequence holds. They are numbered from 1: number n lies after n * every
    blocks of tokens.

    found: the number of the one that it started with, 0 for none.  One that started with a tail
    has that one in the place of the last number before it; 0 is given back once it has been read.
    tokens_found: tokens after which the state lies that it started with.
    """

    __slots__ = ("_first", "found", "held", "rule", "tail", "tokens_found")

    def __init__(
        self, rule: CheckpointRule, tokens_found: int = 0, blocks: Iterable[int] = ()
    ) -> None:
        """blocks: of the one that was found."""
        self.rule = rule
        self.tokens_found = tokens_found
        self.found = tokens_found // (rule.every * rule.block_size)
        self.held: list[list[int]] = [list(blocks)] if tokens_found else []
        """The blocks of each."""
        self._first = self.found if tokens_found else 1
        """Number of the first of them."""
        self.tail: Tail | None = None
        """The one that it is to write."""

    @property
    def next_number(self) -> int:
        """Number of the checkpoint that follows those that it holds."""
        return self._first + len(self.held)

    def numbers(self) -> range:
        """Numbers of the checkpoints that it holds."""
        return range(self._first, self.next_number)

    @property
    def num_blocks(self) -> int:
        tail = 0 if self.tail is None else len(self.tail.blocks) + len(self.tail.partial)
        return len(self.held) * self.rule.pieces + tail

    def all_blocks(self) -> list[int]:
        """Blocks of all checkpoints that it holds, in token order."""
        return [block for blocks in self.held for block in blocks]

    def placed(self) -> list[tuple[int, int]]:
        """(the last block of tokens before it, block) of each block."""
        every = self.rule.every
        placed = [(number * every - 1, each) for number, each in enumerate(self.held, self._first)]
        if self.tail is not None:
            tail = self.tail.blocks + self.tail.partial
            placed.append((self.tail.tokens // self.rule.block_size, tail))
        return [(before, block) for before, blocks in placed for block in blocks]

    def add(self, blocks: list[int]) -> None:
        """The next ones, whose contents are to come."""
        pieces = self.rule.pieces
        self.held += [blocks[at : at + pieces] for at in range(0, len(blocks), pieces)]

    def behind(self, length: int) -> list[int]:
        """The blocks of those that lie after more than `length` blocks of tokens."""
        before = max(0, self.rule.last(length) + 1 - self._first)
        return [block for blocks in self.held[before:] for block in blocks]

    def settle(self, cache: KVCache) -> None:
        """Notes that the sequence's first step is settled: the checkpoint that it started with has
        been read."""
        if not self._first:
            cache.release(self.held.pop(0))
            self._first = 1

    def publish(
        self, cache: KVCache, first: int, last: int, keys: list[bytes], *, lasting: bool = True
    ) -> None:
        """Blocks [first, last) of its tokens, with these keys, are computed: so are the checkpoints
        after them. Older ones than the newest are given back. lasting: see KVCache.publish."""
        rule = self.rule
        newest = rule.last(last)
        for number in range(rule.last(first) + 1, newest + 1):
            key = keys[number * rule.every - 1 - first]
            names = list(rule.names(key))
            cache.publish(self.held[number - self._first], names, lasting=lasting)
        older = newest - self._first
        if older > 0:
            for blocks in self.held[:older]:
                cache.release(blocks)
            del self.held[:older]
            self._first = newest
